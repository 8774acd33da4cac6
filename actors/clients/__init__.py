"""Typed clients of actors. A client owns the deadlines and retries of its calls, and travels as a value.

Every call may raise :class:`actors.clients.calls.ActorLostError` (the actor's process has ended; Ray may start it
again), :class:`actors.clients.calls.ActorTimeoutError` (it did not answer), and what the actor's method raises.
"""
