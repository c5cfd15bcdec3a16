-- A new database at head, as the revisions make it. Names begin with a prefix
-- that stands for the user's. Written by python -m tests.migrations.head_script.

CREATE TABLE a_prefix_alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT a_prefix_alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE a_prefix_user_preferences (
	digest TEXT NOT NULL, 
	user_id TEXT NOT NULL, 
	CONSTRAINT pk_a_prefix_user_preferences PRIMARY KEY (digest, user_id), 
	CONSTRAINT fk_a_prefix_user_preferences_user_id FOREIGN KEY(user_id) REFERENCES a_prefix_users (id) ON DELETE CASCADE
);
CREATE INDEX ix_a_prefix_user_preferences_user_id ON a_prefix_user_preferences (user_id);
CREATE TABLE a_prefix_checkpoint_writes (
	thread_id TEXT NOT NULL, 
	namespace TEXT NOT NULL, 
	checkpoint_id TEXT NOT NULL, 
	task_id TEXT NOT NULL, 
	position BIGINT NOT NULL, 
	task_path TEXT DEFAULT '' NOT NULL, 
	channel TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	encoding TEXT NOT NULL, 
	data BLOB NOT NULL, 
	CONSTRAINT pk_a_prefix_checkpoint_writes PRIMARY KEY (thread_id, namespace, checkpoint_id, task_id, position), 
	CONSTRAINT ck_a_prefix_checkpoint_writes_encoding CHECK (encoding IN ('raw', 'zlib')), 
	CONSTRAINT ck_a_prefix_checkpoint_writes_kind CHECK (kind IN ('json', 'bytes')), 
	CONSTRAINT fk_a_prefix_checkpoint_writes_thread_id FOREIGN KEY(thread_id) REFERENCES a_prefix_checkpoint_threads (id) ON DELETE CASCADE
);
CREATE TABLE a_prefix_search_state (
    number INTEGER NOT NULL CONSTRAINT pk_a_prefix_search_state PRIMARY KEY
        CONSTRAINT ck_a_prefix_search_state_number CHECK (number = 1),
    segmentation TEXT NOT NULL,
    indexed_through BIGINT NOT NULL,
    walk_through BIGINT
);
CREATE TABLE a_prefix_activity (
    number INTEGER NOT NULL CONSTRAINT pk_a_prefix_activity PRIMARY KEY
        CONSTRAINT ck_a_prefix_activity_number CHECK (number = 1),
    taken BIGINT NOT NULL
);
CREATE TABLE "a_prefix_checkpoint_values" (
	thread_id TEXT NOT NULL, 
	line BIGINT NOT NULL, 
	start BIGINT NOT NULL, 
	base_line BIGINT, 
	base_start BIGINT, 
	base_length BIGINT, 
	prefix BIGINT, 
	suffix BIGINT DEFAULT 0 NOT NULL, 
	depth BIGINT NOT NULL, 
	data BLOB NOT NULL, 
	CONSTRAINT pk_a_prefix_checkpoint_values PRIMARY KEY (thread_id, line, start), 
	CONSTRAINT fk_a_prefix_checkpoint_values_thread_id FOREIGN KEY(thread_id) REFERENCES a_prefix_checkpoint_threads (id) ON DELETE CASCADE, 
	CONSTRAINT fk_a_prefix_checkpoint_values_base FOREIGN KEY(thread_id, base_line, base_start) REFERENCES a_prefix_checkpoint_values (thread_id, line, start), 
	CONSTRAINT ck_a_prefix_checkpoint_values_start CHECK (start >= 0 AND prefix >= 0 AND suffix >= 0)
);
CREATE TABLE "a_prefix_checkpoint_entries" (
	checkpoint_pk INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	thread_id TEXT NOT NULL, 
	line BIGINT NOT NULL, 
	start BIGINT DEFAULT 0 NOT NULL, 
	length BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	item_count BIGINT NOT NULL, 
	digest BLOB NOT NULL, 
	CONSTRAINT pk_a_prefix_checkpoint_entries PRIMARY KEY (checkpoint_pk, name), 
	CONSTRAINT fk_a_prefix_checkpoint_entries_checkpoint_pk FOREIGN KEY(checkpoint_pk) REFERENCES a_prefix_checkpoints (pk) ON DELETE CASCADE, 
	CONSTRAINT fk_a_prefix_checkpoint_entries_value FOREIGN KEY(thread_id, line, start) REFERENCES a_prefix_checkpoint_values (thread_id, line, start), 
	CONSTRAINT ck_a_prefix_checkpoint_entries_kind CHECK (kind IN ('json', 'bytes', 'list', 'items'))
);
CREATE INDEX ix_a_prefix_checkpoint_entries_value ON a_prefix_checkpoint_entries (thread_id, line, start, length);
CREATE INDEX ix_a_prefix_checkpoint_values_base ON a_prefix_checkpoint_values (thread_id, base_line, base_start, base_length) WHERE base_line IS NOT NULL;
CREATE TABLE a_prefix_branch_segments (
	session BIGINT NOT NULL, 
	number BIGINT NOT NULL, 
	branch BIGINT NOT NULL, 
	first_seq BIGINT NOT NULL, 
	last_seq BIGINT NOT NULL, 
	previous BIGINT, 
	messages BIGINT DEFAULT 0 NOT NULL, 
	turns BIGINT DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_a_prefix_branch_segments PRIMARY KEY (session, number), 
	CONSTRAINT fk_a_prefix_branch_segments_session FOREIGN KEY(session) REFERENCES a_prefix_sessions (pk) ON DELETE CASCADE, 
	CONSTRAINT fk_a_prefix_branch_segments_session_previous FOREIGN KEY(session, previous) REFERENCES a_prefix_branch_segments (session, number)
);
CREATE INDEX ix_a_prefix_branch_segments_session_branch ON a_prefix_branch_segments (session, branch);
CREATE INDEX ix_a_prefix_branch_segments_session_previous ON a_prefix_branch_segments (session, previous);
CREATE TABLE a_prefix_search_queue (
    pk INTEGER NOT NULL CONSTRAINT pk_a_prefix_search_queue PRIMARY KEY,
    message_pk BIGINT NOT NULL,
    was_indexed BOOLEAN NOT NULL,
    owner BIGINT,
    content TEXT,
    blocks TEXT,
    payload TEXT
);
CREATE INDEX ix_a_prefix_search_queue_message_pk ON a_prefix_search_queue (message_pk);
CREATE VIRTUAL TABLE a_prefix_search_index USING fts5(
    words, scope, content='', columnsize=0, tokenize='ascii'
);
CREATE VIRTUAL TABLE a_prefix_search_index_beginnings USING fts5(
    characters, content='', columnsize=0, detail=none, tokenize='ascii'
);
CREATE TABLE a_prefix_api_keys (
	pk INTEGER NOT NULL, 
	id BLOB NOT NULL, 
	user_id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	prefix TEXT NOT NULL, 
	digest TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	last_used_at BIGINT, 
	expires_at BIGINT, 
	revoked_at BIGINT, 
	CONSTRAINT pk_a_prefix_api_keys PRIMARY KEY (pk), 
	CONSTRAINT fk_a_prefix_api_keys_user_id FOREIGN KEY(user_id) REFERENCES a_prefix_users (id) ON DELETE CASCADE, 
	CONSTRAINT uq_a_prefix_api_keys_id UNIQUE (id), 
	CONSTRAINT uq_a_prefix_api_keys_prefix UNIQUE (prefix)
, CONSTRAINT ck_a_prefix_api_keys_stored CHECK (typeof(id) IN ('blob', 'null') AND typeof(created_at) IN ('integer', 'null') AND typeof(last_used_at) IN ('integer', 'null') AND typeof(expires_at) IN ('integer', 'null') AND typeof(revoked_at) IN ('integer', 'null'))
);
CREATE INDEX ix_a_prefix_api_keys_user_id_pk ON a_prefix_api_keys (user_id, pk);
CREATE TABLE a_prefix_quota_reservations (
	pk INTEGER NOT NULL, 
	id BLOB NOT NULL, 
	user_id TEXT NOT NULL, 
	tokens BIGINT NOT NULL, 
	lapsed BOOLEAN DEFAULT false NOT NULL, 
	created_at BIGINT NOT NULL, 
	expires_at BIGINT NOT NULL, 
	CONSTRAINT pk_a_prefix_quota_reservations PRIMARY KEY (pk), 
	CONSTRAINT ck_a_prefix_quota_reservations_tokens CHECK (tokens > 0), 
	CONSTRAINT fk_a_prefix_quota_reservations_user_id FOREIGN KEY(user_id) REFERENCES a_prefix_users (id) ON DELETE CASCADE, 
	CONSTRAINT uq_a_prefix_quota_reservations_id UNIQUE (id)
, CONSTRAINT ck_a_prefix_quota_reservations_stored CHECK (typeof(id) IN ('blob', 'null') AND typeof(created_at) IN ('integer', 'null') AND typeof(expires_at) IN ('integer', 'null'))
);
CREATE INDEX ix_a_prefix_quota_reservations_expires_at ON a_prefix_quota_reservations (expires_at);
CREATE INDEX ix_a_prefix_quota_reservations_user_id_expires_at ON a_prefix_quota_reservations (user_id, expires_at);
CREATE TABLE a_prefix_messages (
	pk INTEGER NOT NULL, 
	id BLOB NOT NULL, 
	session BIGINT NOT NULL, 
	branch BIGINT NOT NULL, 
	seq BIGINT NOT NULL, 
	turn BIGINT NOT NULL, 
	role TEXT NOT NULL, 
	status TEXT DEFAULT 'complete' NOT NULL, 
	token_count BIGINT DEFAULT 0 NOT NULL, 
	cost BIGINT DEFAULT 0 NOT NULL, 
	created_at BIGINT NOT NULL, 
	name TEXT, 
	tool_call_id TEXT, 
	external_id TEXT, 
	idempotency_key TEXT, 
	content TEXT, 
	blocks TEXT, 
	tool_calls TEXT, 
	metadata TEXT, 
	payload TEXT, 
	chat_keys TEXT, 
	CONSTRAINT pk_a_prefix_messages PRIMARY KEY (pk), 
	CONSTRAINT ck_a_prefix_messages_amounts CHECK (token_count >= 0 AND cost >= 0), 
	CONSTRAINT ck_a_prefix_messages_content CHECK (content IS NULL OR blocks IS NULL), 
	CONSTRAINT ck_a_prefix_messages_role CHECK (role IN ('system', 'developer', 'user', 'assistant', 'tool')), 
	CONSTRAINT ck_a_prefix_messages_status CHECK (status IN ('complete', 'streaming', 'incomplete')), 
	CONSTRAINT uq_a_prefix_messages_id UNIQUE (id), 
	CONSTRAINT fk_a_prefix_messages_session_branch FOREIGN KEY(session, branch) REFERENCES a_prefix_branches (session, number) ON DELETE CASCADE
, CONSTRAINT ck_a_prefix_messages_stored CHECK (typeof(id) IN ('blob', 'null') AND typeof(created_at) IN ('integer', 'null'))
);
CREATE INDEX ix_a_prefix_messages_status_pk ON a_prefix_messages (status, pk) WHERE status <> 'complete';
CREATE UNIQUE INDEX ix_a_prefix_messages_session_branch_seq ON a_prefix_messages (session, branch, seq);
CREATE INDEX ix_a_prefix_messages_session_branch_turn ON a_prefix_messages (session, branch, turn) WHERE role = 'user';
CREATE UNIQUE INDEX ix_a_prefix_messages_session_external_id ON a_prefix_messages (session, external_id) WHERE external_id IS NOT NULL;
CREATE UNIQUE INDEX ix_a_prefix_messages_session_idempotency_key ON a_prefix_messages (session, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE TRIGGER a_prefix_search_inserted AFTER INSERT ON a_prefix_messages
WHEN new.pk <= (SELECT indexed_through FROM a_prefix_search_state)
BEGIN
    INSERT INTO a_prefix_search_queue (message_pk, was_indexed) VALUES (new.pk, 0);
END;
CREATE TRIGGER a_prefix_search_updated
AFTER UPDATE OF pk, session, content, blocks, payload ON a_prefix_messages
WHEN (old.pk, old.session) IS NOT (new.pk, new.session)
    OR (old.content, old.blocks, old.payload) IS NOT (new.content, new.blocks, new.payload)
BEGIN
    INSERT INTO a_prefix_search_queue (message_pk, was_indexed, owner, content, blocks, payload)
    SELECT old.pk, 1, old.session, old.content, old.blocks, old.payload
    FROM a_prefix_search_state WHERE old.pk <= indexed_through;
    INSERT INTO a_prefix_search_queue (message_pk, was_indexed)
    SELECT new.pk, 0 FROM a_prefix_search_state WHERE new.pk <> old.pk AND new.pk <= indexed_through;
END;
CREATE TRIGGER a_prefix_search_deleted AFTER DELETE ON a_prefix_messages
WHEN old.pk <= (SELECT indexed_through FROM a_prefix_search_state)
BEGIN
    INSERT INTO a_prefix_search_queue (message_pk, was_indexed, owner, content, blocks, payload)
    VALUES (old.pk, 1, old.session, old.content, old.blocks, old.payload);
END;
CREATE TRIGGER a_prefix_activity_kept AFTER DELETE ON a_prefix_messages
WHEN old.pk > (SELECT coalesce(max(pk), 0) FROM a_prefix_messages)
BEGIN
    UPDATE a_prefix_activity SET taken = max(taken, old.pk);
END;
CREATE TABLE a_prefix_message_tool_calls (
	message_id BLOB NOT NULL, 
	position BIGINT NOT NULL, 
	session BIGINT NOT NULL, 
	seq BIGINT NOT NULL, 
	name TEXT NOT NULL, 
	call_id TEXT, 
	CONSTRAINT pk_a_prefix_message_tool_calls PRIMARY KEY (message_id, position), 
	CONSTRAINT fk_a_prefix_message_tool_calls_message_id FOREIGN KEY(message_id) REFERENCES a_prefix_messages (id) ON DELETE CASCADE
, CONSTRAINT ck_a_prefix_message_tool_calls_stored CHECK (typeof(message_id) IN ('blob', 'null'))
);
CREATE INDEX ix_a_prefix_message_tool_calls_session_name_seq ON a_prefix_message_tool_calls (session, name, seq);
CREATE INDEX ix_a_prefix_message_tool_calls_session_call_id ON a_prefix_message_tool_calls (session, call_id);
CREATE TABLE a_prefix_message_marks (
	message_id BLOB NOT NULL, 
	mark TEXT NOT NULL, 
	session BIGINT NOT NULL, 
	seq BIGINT NOT NULL, 
	CONSTRAINT pk_a_prefix_message_marks PRIMARY KEY (message_id, mark), 
	CONSTRAINT fk_a_prefix_message_marks_message_id FOREIGN KEY(message_id) REFERENCES a_prefix_messages (id) ON DELETE CASCADE
, CONSTRAINT ck_a_prefix_message_marks_stored CHECK (typeof(message_id) IN ('blob', 'null'))
);
CREATE INDEX ix_a_prefix_message_marks_session_mark_seq ON a_prefix_message_marks (session, mark, seq);
CREATE TABLE a_prefix_message_chunks (
	message_id BLOB NOT NULL, 
	position BIGINT NOT NULL, 
	session BIGINT NOT NULL, 
	content TEXT NOT NULL, 
	created_at BIGINT, 
	CONSTRAINT pk_a_prefix_message_chunks PRIMARY KEY (message_id, position), 
	CONSTRAINT fk_a_prefix_message_chunks_message_id FOREIGN KEY(message_id) REFERENCES a_prefix_messages (id) ON DELETE CASCADE
, CONSTRAINT ck_a_prefix_message_chunks_stored CHECK (typeof(message_id) IN ('blob', 'null') AND typeof(created_at) IN ('integer', 'null'))
);
CREATE INDEX ix_a_prefix_message_chunks_session ON a_prefix_message_chunks (session);
CREATE TABLE a_prefix_attachments (
	pk INTEGER NOT NULL, 
	id BLOB NOT NULL, 
	message_id BLOB NOT NULL, 
	session BIGINT NOT NULL, 
	digest TEXT NOT NULL, 
	media_type TEXT NOT NULL, 
	name TEXT, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_a_prefix_attachments PRIMARY KEY (pk), 
	CONSTRAINT fk_a_prefix_attachments_digest FOREIGN KEY(digest) REFERENCES a_prefix_blobs (digest), 
	CONSTRAINT fk_a_prefix_attachments_message_id FOREIGN KEY(message_id) REFERENCES a_prefix_messages (id) ON DELETE CASCADE, 
	CONSTRAINT uq_a_prefix_attachments_id UNIQUE (id)
, CONSTRAINT ck_a_prefix_attachments_stored CHECK (typeof(id) IN ('blob', 'null') AND typeof(message_id) IN ('blob', 'null') AND typeof(created_at) IN ('integer', 'null'))
);
CREATE INDEX ix_a_prefix_attachments_session_pk ON a_prefix_attachments (session, pk);
CREATE INDEX ix_a_prefix_attachments_digest ON a_prefix_attachments (digest);
CREATE INDEX ix_a_prefix_attachments_message_id_pk ON a_prefix_attachments (message_id, pk);
CREATE TABLE a_prefix_tool_logs (
	pk INTEGER NOT NULL, 
	id BLOB NOT NULL, 
	session_id TEXT NOT NULL, 
	message_id BLOB, 
	tool TEXT NOT NULL, 
	success BOOLEAN NOT NULL, 
	elapsed_ms FLOAT, 
	created_at BIGINT NOT NULL, 
	error TEXT, 
	input TEXT, 
	output TEXT, tool_call_id TEXT, 
	CONSTRAINT pk_a_prefix_tool_logs PRIMARY KEY (pk), 
	CONSTRAINT ck_a_prefix_tool_logs_elapsed_ms CHECK (elapsed_ms >= 0), 
	CONSTRAINT fk_a_prefix_tool_logs_message_id FOREIGN KEY(message_id) REFERENCES a_prefix_messages (id) ON DELETE SET NULL, 
	CONSTRAINT fk_a_prefix_tool_logs_session_id FOREIGN KEY(session_id) REFERENCES a_prefix_sessions (id) ON DELETE CASCADE, 
	CONSTRAINT uq_a_prefix_tool_logs_id UNIQUE (id)
, CONSTRAINT ck_a_prefix_tool_logs_stored CHECK (typeof(id) IN ('blob', 'null') AND typeof(message_id) IN ('blob', 'null') AND typeof(created_at) IN ('integer', 'null'))
);
CREATE INDEX ix_a_prefix_tool_logs_session_id_pk ON a_prefix_tool_logs (session_id, pk);
CREATE INDEX ix_a_prefix_tool_logs_session_id_tool_pk ON a_prefix_tool_logs (session_id, tool, pk);
CREATE INDEX ix_a_prefix_tool_logs_tool_created_at_pk ON a_prefix_tool_logs (tool, created_at, pk);
CREATE INDEX ix_a_prefix_tool_logs_tool_pk ON a_prefix_tool_logs (tool, pk);
CREATE INDEX ix_a_prefix_tool_logs_created_at_pk ON a_prefix_tool_logs (created_at, pk);
CREATE INDEX ix_a_prefix_tool_logs_message_id ON a_prefix_tool_logs (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX ix_a_prefix_tool_logs_session_id_created_at_pk ON a_prefix_tool_logs (session_id, created_at, pk);
CREATE TABLE a_prefix_turn_usage (
	pk INTEGER NOT NULL, 
	id BLOB NOT NULL, 
	session_id TEXT NOT NULL, 
	branch BIGINT NOT NULL, 
	turn BIGINT NOT NULL, 
	model TEXT, 
	requests BIGINT NOT NULL, 
	input_tokens BIGINT NOT NULL, 
	output_tokens BIGINT NOT NULL, 
	total_tokens BIGINT NOT NULL, 
	cost BIGINT, 
	details TEXT, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_a_prefix_turn_usage PRIMARY KEY (pk), 
	CONSTRAINT ck_a_prefix_turn_usage_amounts CHECK (requests >= 0 AND input_tokens >= 0 AND output_tokens >= 0 AND total_tokens >= 0 AND cost >= 0), 
	CONSTRAINT fk_a_prefix_turn_usage_session_id FOREIGN KEY(session_id) REFERENCES a_prefix_sessions (id) ON DELETE CASCADE, 
	CONSTRAINT uq_a_prefix_turn_usage_id UNIQUE (id)
, CONSTRAINT ck_a_prefix_turn_usage_stored CHECK (typeof(id) IN ('blob', 'null') AND typeof(created_at) IN ('integer', 'null'))
);
CREATE INDEX ix_a_prefix_turn_usage_created_at ON a_prefix_turn_usage (created_at);
CREATE INDEX ix_a_prefix_turn_usage_model_created_at ON a_prefix_turn_usage (model, created_at);
CREATE INDEX ix_a_prefix_turn_usage_session_id_branch_turn ON a_prefix_turn_usage (session_id, branch, turn);
CREATE INDEX ix_a_prefix_turn_usage_session_id_created_at ON a_prefix_turn_usage (session_id, created_at);
CREATE TABLE a_prefix_tasks (
	pk INTEGER NOT NULL, 
	id BLOB NOT NULL, 
	session_id TEXT, 
	queue TEXT DEFAULT 'default' NOT NULL, 
	kind TEXT NOT NULL, 
	status TEXT DEFAULT 'pending' NOT NULL, 
	priority BIGINT DEFAULT 0 NOT NULL, 
	run_at BIGINT NOT NULL, 
	attempts BIGINT DEFAULT 0 NOT NULL, 
	failures BIGINT DEFAULT 0 NOT NULL, 
	max_retries BIGINT DEFAULT 0 NOT NULL, 
	alone_in_session BOOLEAN DEFAULT false NOT NULL, 
	cancel_requested BOOLEAN DEFAULT false NOT NULL, 
	fence BIGINT DEFAULT 0 NOT NULL, 
	worker TEXT, 
	lease_expires_at BIGINT, 
	idempotency_key TEXT, 
	payload TEXT, 
	result TEXT, 
	error TEXT, 
	created_at BIGINT NOT NULL, 
	updated_at BIGINT NOT NULL, 
	started_at BIGINT, 
	paused_at BIGINT, 
	completed_at BIGINT, 
	failed_at BIGINT, 
	cancelled_at BIGINT, 
	dead_at BIGINT, 
	CONSTRAINT pk_a_prefix_tasks PRIMARY KEY (pk), 
	CONSTRAINT ck_a_prefix_tasks_alone_in_session CHECK (session_id IS NOT NULL OR NOT alone_in_session), 
	CONSTRAINT ck_a_prefix_tasks_attempts CHECK (attempts >= 0 AND failures >= 0 AND max_retries >= 0), 
	CONSTRAINT ck_a_prefix_tasks_status CHECK (status IN ('pending', 'running', 'paused', 'completed', 'failed', 'cancelled', 'dead')), 
	CONSTRAINT fk_a_prefix_tasks_session_id FOREIGN KEY(session_id) REFERENCES a_prefix_sessions (id) ON DELETE CASCADE, 
	CONSTRAINT uq_a_prefix_tasks_id UNIQUE (id)
, CONSTRAINT ck_a_prefix_tasks_stored CHECK (typeof(id) IN ('blob', 'null') AND typeof(run_at) IN ('integer', 'null') AND typeof(lease_expires_at) IN ('integer', 'null') AND typeof(created_at) IN ('integer', 'null') AND typeof(updated_at) IN ('integer', 'null') AND typeof(started_at) IN ('integer', 'null') AND typeof(paused_at) IN ('integer', 'null') AND typeof(completed_at) IN ('integer', 'null') AND typeof(failed_at) IN ('integer', 'null') AND typeof(cancelled_at) IN ('integer', 'null') AND typeof(dead_at) IN ('integer', 'null'))
);
CREATE INDEX ix_a_prefix_tasks_claim ON a_prefix_tasks (queue, priority DESC, pk, run_at) WHERE status = 'pending';
CREATE INDEX ix_a_prefix_tasks_due ON a_prefix_tasks (queue, run_at) WHERE status = 'pending';
CREATE UNIQUE INDEX uq_a_prefix_tasks_running_alone ON a_prefix_tasks (session_id) WHERE status = 'running' AND alone_in_session;
CREATE INDEX ix_a_prefix_tasks_lease_expires_at ON a_prefix_tasks (lease_expires_at) WHERE status = 'running';
CREATE UNIQUE INDEX ix_a_prefix_tasks_queue_idempotency_key ON a_prefix_tasks (queue, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX ix_a_prefix_tasks_queue_pk ON a_prefix_tasks (queue, pk);
CREATE INDEX ix_a_prefix_tasks_queue_status_pk ON a_prefix_tasks (queue, status, pk);
CREATE INDEX ix_a_prefix_tasks_session_id_pk ON a_prefix_tasks (session_id, pk);
CREATE INDEX ix_a_prefix_tasks_session_id_status_pk ON a_prefix_tasks (session_id, status, pk);
CREATE INDEX ix_a_prefix_tasks_status_pk ON a_prefix_tasks (status, pk);
CREATE TABLE a_prefix_users (
	pk INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	email TEXT, 
	quota_total BIGINT, 
	quota_used BIGINT DEFAULT 0 NOT NULL, 
	quota_reserved BIGINT DEFAULT 0 NOT NULL, 
	preferences TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	updated_at BIGINT NOT NULL, deleting TEXT, 
	CONSTRAINT pk_a_prefix_users PRIMARY KEY (pk), 
	CONSTRAINT ck_a_prefix_users_quota_reserved CHECK (quota_reserved >= 0), 
	CONSTRAINT ck_a_prefix_users_quota_total CHECK (quota_total >= 0), 
	CONSTRAINT ck_a_prefix_users_quota_used CHECK (quota_used >= 0), 
	CONSTRAINT uq_a_prefix_users_id UNIQUE (id)
, CONSTRAINT ck_a_prefix_users_stored CHECK (typeof(created_at) IN ('integer', 'null') AND typeof(updated_at) IN ('integer', 'null'))
);
CREATE INDEX ix_a_prefix_users_email_pk ON a_prefix_users (email, pk);
CREATE INDEX ix_a_prefix_users_deleting ON a_prefix_users (id) WHERE deleting IS NOT NULL;
CREATE TABLE a_prefix_sessions (
	pk INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	user_id TEXT, 
	status TEXT DEFAULT 'active' NOT NULL, 
	active_branch BIGINT DEFAULT 0 NOT NULL, 
	last_branch BIGINT DEFAULT 0 NOT NULL, 
	last_seq BIGINT DEFAULT 0 NOT NULL, 
	turn BIGINT DEFAULT 0 NOT NULL, 
	message_count BIGINT DEFAULT 0 NOT NULL, 
	total_tokens BIGINT DEFAULT 0 NOT NULL, 
	total_cost BIGINT DEFAULT 0 NOT NULL, 
	activity BIGINT NOT NULL, 
	ttl_seconds BIGINT, 
	expires_at BIGINT, 
	created_at BIGINT NOT NULL, 
	last_active_at BIGINT NOT NULL, 
	title TEXT, 
	model TEXT, tip BIGINT, listed_activity BIGINT DEFAULT 0 NOT NULL, newest_at BIGINT NOT NULL, in_order BOOLEAN DEFAULT true NOT NULL, 
	CONSTRAINT pk_a_prefix_sessions PRIMARY KEY (pk), 
	CONSTRAINT ck_a_prefix_sessions_counters CHECK (message_count >= 0 AND total_tokens >= 0 AND total_cost >= 0), 
	CONSTRAINT ck_a_prefix_sessions_status CHECK (status IN ('active', 'paused', 'waiting_user', 'completed', 'cancelled', 'failed')), 
	CONSTRAINT fk_a_prefix_sessions_user_id FOREIGN KEY(user_id) REFERENCES a_prefix_users (id) ON DELETE CASCADE, 
	CONSTRAINT uq_a_prefix_sessions_id UNIQUE (id)
, CONSTRAINT ck_a_prefix_sessions_stored CHECK (typeof(expires_at) IN ('integer', 'null') AND typeof(created_at) IN ('integer', 'null') AND typeof(last_active_at) IN ('integer', 'null') AND typeof(newest_at) IN ('integer', 'null'))
);
CREATE INDEX ix_a_prefix_sessions_expires_at ON a_prefix_sessions (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX ix_a_prefix_sessions_user_id_status_listed_activity ON a_prefix_sessions (user_id, status, listed_activity) WHERE user_id IS NOT NULL;
CREATE INDEX ix_a_prefix_sessions_status_listed_activity ON a_prefix_sessions (status, listed_activity);
CREATE TABLE a_prefix_session_data (
	session_id TEXT NOT NULL, 
	version BIGINT DEFAULT 1 NOT NULL, 
	question TEXT, 
	asked_at BIGINT, 
	metadata TEXT NOT NULL, 
	config TEXT NOT NULL, 
	state TEXT, 
	updated_at BIGINT NOT NULL, layout TEXT, epoch BIGINT DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_a_prefix_session_data PRIMARY KEY (session_id), 
	CONSTRAINT fk_a_prefix_session_data_session_id FOREIGN KEY(session_id) REFERENCES a_prefix_sessions (id) ON DELETE CASCADE
, CONSTRAINT ck_a_prefix_session_data_stored CHECK (typeof(asked_at) IN ('integer', 'null') AND typeof(updated_at) IN ('integer', 'null'))
);
CREATE TABLE a_prefix_branches (
	session BIGINT NOT NULL, 
	number BIGINT NOT NULL, 
	name TEXT NOT NULL, 
	parent BIGINT, 
	fork_seq BIGINT DEFAULT 0 NOT NULL, 
	fork_turn BIGINT DEFAULT 0 NOT NULL, 
	created_at BIGINT NOT NULL, 
	tip BIGINT, 
	gone BOOLEAN DEFAULT false NOT NULL, 
	own_messages BIGINT DEFAULT 0 NOT NULL, 
	own_turns BIGINT DEFAULT 0 NOT NULL, reserved BOOLEAN DEFAULT false NOT NULL, 
	CONSTRAINT pk_a_prefix_branches PRIMARY KEY (session, number), 
	CONSTRAINT ck_a_prefix_branches_parent CHECK (number >= 0 AND (parent < number OR parent IS NULL)), 
	CONSTRAINT fk_a_prefix_branches_session FOREIGN KEY(session) REFERENCES a_prefix_sessions (pk) ON DELETE CASCADE, 
	CONSTRAINT fk_a_prefix_branches_session_parent FOREIGN KEY(session, parent) REFERENCES a_prefix_branches (session, number)
, CONSTRAINT ck_a_prefix_branches_stored CHECK (typeof(created_at) IN ('integer', 'null'))
);
CREATE UNIQUE INDEX ix_a_prefix_branches_session_name ON a_prefix_branches (session, name);
CREATE INDEX ix_a_prefix_branches_session_parent ON a_prefix_branches (session, parent);
CREATE INDEX ix_a_prefix_branches_session_tip ON a_prefix_branches (session, tip);
CREATE TABLE a_prefix_summaries (
	session BIGINT NOT NULL, 
	branch BIGINT NOT NULL, 
	content TEXT NOT NULL, 
	metadata TEXT NOT NULL, 
	through_seq BIGINT, 
	created_at BIGINT NOT NULL, 
	updated_at BIGINT NOT NULL, 
	CONSTRAINT pk_a_prefix_summaries PRIMARY KEY (session, branch), 
	CONSTRAINT fk_a_prefix_summaries_session FOREIGN KEY(session) REFERENCES a_prefix_sessions (pk) ON DELETE CASCADE
, CONSTRAINT ck_a_prefix_summaries_stored CHECK (typeof(created_at) IN ('integer', 'null') AND typeof(updated_at) IN ('integer', 'null'))
);
CREATE TABLE a_prefix_blobs (
	digest TEXT NOT NULL, 
	size BIGINT NOT NULL, 
	data BLOB NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_a_prefix_blobs PRIMARY KEY (digest)
, CONSTRAINT ck_a_prefix_blobs_stored CHECK (typeof(created_at) IN ('integer', 'null'))
);
CREATE TABLE a_prefix_checkpoint_threads (
	pk INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	user_id TEXT, 
	session_id TEXT, 
	activity BIGINT NOT NULL, 
	last_line BIGINT DEFAULT 0 NOT NULL, 
	created_at BIGINT NOT NULL, 
	CONSTRAINT pk_a_prefix_checkpoint_threads PRIMARY KEY (pk), 
	CONSTRAINT fk_a_prefix_checkpoint_threads_session_id FOREIGN KEY(session_id) REFERENCES a_prefix_sessions (id) ON DELETE CASCADE, 
	CONSTRAINT fk_a_prefix_checkpoint_threads_user_id FOREIGN KEY(user_id) REFERENCES a_prefix_users (id) ON DELETE CASCADE, 
	CONSTRAINT uq_a_prefix_checkpoint_threads_id UNIQUE (id)
, CONSTRAINT ck_a_prefix_checkpoint_threads_stored CHECK (typeof(created_at) IN ('integer', 'null'))
);
CREATE INDEX ix_a_prefix_checkpoint_threads_activity ON a_prefix_checkpoint_threads (activity);
CREATE INDEX ix_a_prefix_checkpoint_threads_session_id_activity ON a_prefix_checkpoint_threads (session_id, activity) WHERE session_id IS NOT NULL;
CREATE INDEX ix_a_prefix_checkpoint_threads_user_id_activity ON a_prefix_checkpoint_threads (user_id, activity) WHERE user_id IS NOT NULL;
CREATE TABLE a_prefix_checkpoints (
	pk INTEGER NOT NULL, 
	thread_id TEXT NOT NULL, 
	namespace TEXT DEFAULT '' NOT NULL, 
	id TEXT NOT NULL, 
	parent_id TEXT, 
	step BIGINT NOT NULL, 
	run_id TEXT, 
	tags TEXT NOT NULL, 
	summary TEXT NOT NULL, 
	next_node TEXT NOT NULL, 
	metadata TEXT, 
	created_at BIGINT NOT NULL, small_values BLOB, 
	CONSTRAINT pk_a_prefix_checkpoints PRIMARY KEY (pk), 
	CONSTRAINT ck_a_prefix_checkpoints_step CHECK (step >= 0), 
	CONSTRAINT fk_a_prefix_checkpoints_thread_id FOREIGN KEY(thread_id) REFERENCES a_prefix_checkpoint_threads (id) ON DELETE CASCADE, 
	CONSTRAINT fk_a_prefix_checkpoints_thread_id_namespace_parent_id FOREIGN KEY(thread_id, namespace, parent_id) REFERENCES a_prefix_checkpoints (thread_id, namespace, id), 
	CONSTRAINT uq_a_prefix_checkpoints_thread_id_namespace_id UNIQUE (thread_id, namespace, id)
, CONSTRAINT ck_a_prefix_checkpoints_stored CHECK (typeof(created_at) IN ('integer', 'null'))
);
CREATE UNIQUE INDEX uq_a_prefix_checkpoints_id ON a_prefix_checkpoints (id) WHERE namespace = '';
CREATE INDEX ix_a_prefix_checkpoints_run_id_pk ON a_prefix_checkpoints (run_id, pk) WHERE run_id IS NOT NULL;
CREATE INDEX ix_a_prefix_checkpoints_thread_id_namespace_parent_id ON a_prefix_checkpoints (thread_id, namespace, parent_id);
CREATE INDEX ix_a_prefix_checkpoints_thread_id_namespace_step_pk ON a_prefix_checkpoints (thread_id, namespace, step, pk);
CREATE TABLE a_prefix_memories (
	pk INTEGER NOT NULL, 
	user_id TEXT, 
	place BLOB NOT NULL, 
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	ttl BIGINT, 
	created_at BIGINT NOT NULL, 
	updated_at BIGINT NOT NULL, 
	expires_at BIGINT, 
	CONSTRAINT pk_a_prefix_memories PRIMARY KEY (pk), 
	CONSTRAINT uq_a_prefix_memories_place_key UNIQUE (place, "key"), 
	CONSTRAINT fk_a_prefix_memories_user_id FOREIGN KEY(user_id) REFERENCES a_prefix_users (id) ON DELETE CASCADE
);
CREATE INDEX ix_a_prefix_memories_place_updated_at_pk ON a_prefix_memories (place, updated_at, pk);
CREATE INDEX ix_a_prefix_memories_user_id ON a_prefix_memories (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX ix_a_prefix_memories_expires_at_pk ON a_prefix_memories (expires_at, pk) WHERE expires_at IS NOT NULL;
INSERT INTO a_prefix_activity VALUES (1, 0);
INSERT INTO a_prefix_alembic_version VALUES ('0020');
INSERT INTO a_prefix_search_state VALUES (1, '2:250000', 0, NULL);
