"""What Alembic runs for the application's own revisions; agentstore's are its own affair."""

import os

from alembic import context
from desk.models import PREFIX, Base
from sqlalchemy import create_engine

from agentstore import migrations

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///desk.db"))
with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        include_name=migrations.include_name(table_prefix=PREFIX),
        include_object=migrations.include_object(table_prefix=PREFIX),
        render_item=migrations.render_item,
        render_as_batch=True,
    )
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
