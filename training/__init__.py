"""Trainings for ``train.py``: models, callbacks, checks before a run and lines after it.

Part of the checkout and not of the installed package, which never imports it: copy it into a project of your
own. Not here: anything that loads or augments images (``tarpeg``).
"""
