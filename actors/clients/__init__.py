"""How actors are called: typed clients, each of which owns the deadlines and retries of its calls. They travel as
values.

Every call may raise :class:`actors.clients.calls.ActorLostError` (the actor's process is gone; Ray may start it again)
and :class:`actors.clients.calls.ActorTimeoutError` (it did not answer), and what the actor's method raises."""
