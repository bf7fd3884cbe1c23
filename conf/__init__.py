"""tarpeg's Hydra configuration: ``pkg://tarpeg.conf`` on a project's search path."""
