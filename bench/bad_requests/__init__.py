"""Requests that SGLang 0.5.17 does not survive or does not understand, and what it does with each."""
