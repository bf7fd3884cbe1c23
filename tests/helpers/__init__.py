"""What several tests share: pictures, tars, caches, checkouts, and the slow twins of the operators."""
