"""Loop on a virtual clock, without Django: same rounds, changes and policies as live."""
