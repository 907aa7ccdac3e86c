"""The version of this release."""

VERSION = "0.2.0"
