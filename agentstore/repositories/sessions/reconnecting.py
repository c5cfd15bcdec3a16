"""What an agent keeps to find its session again: where it was, and none of what was said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import and_, select

from agentstore.errors import InvalidInput, NotFound
from agentstore.execution.unit import Unit
from agentstore.models.deleting import session_is_open
from agentstore.repositories.branches.branches import Branches
from agentstore.values import validation

_VERSION = 1
_KEYS = ("version", "session_id", "user_id", "branch")


def state_dict(unit: Unit, session_id: str) -> dict[str, Any]:
    """Say where a session is; see ``Sessions.state_dict``."""
    sessions, branches = unit.tables.sessions, unit.tables.branches
    active = and_(
        branches.c.session_id == sessions.c.pk, branches.c.number == sessions.c.active_branch
    )
    query = (
        select(sessions.c.user_id, branches.c.name)
        .join_from(sessions, branches, active)
        .where(sessions.c.id == session_id, session_is_open(unit.tables))
    )
    row = unit.connection.execute(query).first()
    if row is None:
        raise NotFound("session", session_id)
    return dict(zip(_KEYS, (_VERSION, session_id, row.user_id, row.name), strict=True))


def load_state_dict(unit: Unit, state: Mapping[str, Any], *, strict: bool) -> str:
    """Go back to where a session was; give its id. See ``Sessions.load_state_dict``."""
    validation.flag("strict", strict)
    if not isinstance(state, Mapping):
        raise InvalidInput(f"state must be what state_dict() gave, not {type(state).__name__}.")
    if strict and (set(state) != set(_KEYS) or state["version"] != _VERSION):
        raise InvalidInput(
            f"state must have the keys {', '.join(_KEYS)}, and version {_VERSION}: it is not what "
            "state_dict() gave, or another agentstore gave it. Pass strict=False to take from it "
            "what there is."
        )
    session_id = validation.text("state['session_id']", state.get("session_id"))
    branch = validation.optional_text("state['branch']", state.get("branch"))
    there = state_dict(unit, session_id)
    if "user_id" in state and state["user_id"] != there["user_id"]:
        raise NotFound("session", session_id, "It belongs to another user than state says.")
    if branch is not None and branch != there["branch"]:
        try:
            Branches(unit).switch(session_id, branch)
        except NotFound:
            if strict:
                raise
    return session_id
