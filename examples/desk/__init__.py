"""A help desk: a FastAPI application with a database of its own, which agentstore shares.

From the folder examples/:

    agentstore upgrade --url sqlite:///desk.db --table-prefix agents_
    alembic -c desk/alembic.ini upgrade head
    uvicorn desk.app:app
"""
