"""Simulations as people ask for them: kept as rows, run by workers in processes of their own, shown
on pages and by REST.
"""
