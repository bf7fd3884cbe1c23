"""What a user's transform becomes: native steps, steps in Python, adapters of other libraries, and the plan.

Reading samples and filling batches belong in ``loader``, distortions of whole batches in ``augment``.
"""
