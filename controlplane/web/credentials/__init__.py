"""Credentials of people: API tokens with scopes and lifetimes, one-time passwords."""
