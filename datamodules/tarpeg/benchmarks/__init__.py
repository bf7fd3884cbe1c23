"""What tools/bench.py measures: ourselves beside others. Nothing of the library imports it."""
