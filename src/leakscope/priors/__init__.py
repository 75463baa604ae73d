"""Priors, one a file; modules that begin with an underscore are what several of them share."""
