"""Child processes of this program: one way to start, ask, limit and end them (ADR 0052).

- `child.py`, the parent's side: starts a child in a session of its own, asks it until a deadline,
  and kills it with all processes of its session.
- `messages.py`, both sides: a message is a line of bytes.
- `limits.py`, the child's side: it ends with its parent, is nice, and limits its memory.
- `shared.py`: a child that answers questions of several processes through a socket.

What a message says, and how a failure is worded for users, is the caller's.
"""
