"""The tools, configured by Hydra: ``tarpeg COMMAND`` after an installation, tools/ in a checkout.

Whatever a tool does is a function of the package ``tarpeg``, which knows nothing of Hydra. ``dino`` is the
training step of conf/experiment/dino.yaml.
"""
