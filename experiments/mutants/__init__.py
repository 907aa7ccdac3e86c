"""Mutants: changes of single lines that break a promise of safety, each noticed by a test."""
