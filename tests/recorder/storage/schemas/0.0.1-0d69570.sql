BEGIN TRANSACTION;
CREATE TABLE evaluation_row (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	run_id INTEGER NOT NULL, 
	uid VARCHAR NOT NULL, 
	changed BIGINT DEFAULT '0' NOT NULL, 
	eval_name VARCHAR NOT NULL, 
	mode VARCHAR NOT NULL, 
	step INTEGER NOT NULL, 
	policy_step INTEGER NOT NULL, 
	epoch FLOAT, 
	"group" VARCHAR NOT NULL, 
	generation INTEGER NOT NULL, 
	process INTEGER NOT NULL, 
	task VARCHAR, 
	model VARCHAR, 
	status VARCHAR DEFAULT 'running' NOT NULL, 
	stop_reason VARCHAR, 
	error VARCHAR, 
	reward FLOAT, 
	advantage FLOAT, 
	rollout_reward FLOAT, 
	env_reward_sum FLOAT, 
	env_reward_last FLOAT, 
	rewards JSON, 
	odd_rewards JSON, 
	reward_weights JSON, 
	message_count INTEGER DEFAULT '0' NOT NULL, 
	turns INTEGER, 
	prompt_tokens INTEGER, 
	completion_tokens INTEGER, 
	env_tokens INTEGER, 
	created BIGINT NOT NULL, 
	returned BIGINT, 
	scored BIGINT, 
	seconds FLOAT, 
	preview VARCHAR, 
	metrics JSON, 
	env_steps INTEGER, 
	env_errors INTEGER, 
	parse_failures INTEGER, 
	parse_streak INTEGER, 
	parse_tail INTEGER, 
	action_streak INTEGER, 
	action_tail INTEGER, 
	repeats FLOAT, 
	tool_calls INTEGER, 
	compression FLOAT, 
	distinct_words FLOAT, 
	trigram_repeats FLOAT, 
	truncated_turns INTEGER, 
	cut_tokens INTEGER, 
	cut_limit INTEGER, 
	env_success INTEGER, 
	unsaid_actions INTEGER, 
	unsaid_action VARCHAR, 
	prompt_key BIGINT, 
	completion_key BIGINT, 
	mean_logprob FLOAT, 
	first_action VARCHAR, 
	last_action VARCHAR, 
	staleness INTEGER, 
	dropped VARCHAR, 
	pruned BIGINT, 
	attributes JSON, 
	UNIQUE (run_id, uid), 
	FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "evaluation_row" VALUES(1,1,'dd5g/0/0',1,'rollouts','eval',0,0,NULL,'20260101-100000-abcd/eval/g',0,0,'where',NULL,'ok','turn_limit',NULL,0.0,NULL,NULL,0.0,0.0,NULL,NULL,NULL,4,2,NULL,NULL,NULL,1795694105804822,1795694105805808,1795694105805767,3.49501999153289943933e-04,'I list the files first. ls',NULL,2,0,0,0,0,2,2,0.0,0,7.42857142857142882519e-01,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,5220248021845,120803029911862,NULL,'ls','ls',NULL,NULL,NULL,NULL);
INSERT INTO "evaluation_row" VALUES(2,1,'dd5g/1/0',1,'rollouts','eval',0,0,NULL,'20260101-100000-abcd/eval/g',0,0,'where',NULL,'ok','done',NULL,1.0,NULL,NULL,1.0,1.0,NULL,NULL,NULL,4,2,NULL,NULL,NULL,1795694105805873,1795694105806183,1795694105806160,1.82570001925341784954e-04,'I think that pwd answers this. pwd',NULL,2,0,0,0,0,1,1,0.0,0,7.90697674418604612434e-01,NULL,NULL,NULL,NULL,NULL,1,1,'ls',5220248021845,274750073186745,NULL,'ls','pwd',NULL,NULL,NULL,NULL);
CREATE TABLE image (
	hash VARCHAR NOT NULL, 
	media_type VARCHAR NOT NULL, 
	width INTEGER NOT NULL, 
	height INTEGER NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (hash)
);
CREATE TABLE logs_ui_schema (
	version INTEGER NOT NULL, 
	created BIGINT NOT NULL, 
	oldest_reader INTEGER NOT NULL, 
	oldest_writer INTEGER NOT NULL, 
	migrated BIGINT, 
	PRIMARY KEY (version)
);
INSERT INTO "logs_ui_schema" VALUES(1,1795694107158079,1,1,NULL);
CREATE TABLE payload_start (
	id BIGINT NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE rollout_payload (
	row_id INTEGER NOT NULL, 
	content_start BIGINT, 
	tokens_start BIGINT, 
	content BLOB, 
	tokens BLOB, 
	PRIMARY KEY (row_id), 
	FOREIGN KEY(row_id) REFERENCES evaluation_row (id), 
	FOREIGN KEY(content_start) REFERENCES payload_start (id), 
	FOREIGN KEY(tokens_start) REFERENCES payload_start (id)
);
INSERT INTO "rollout_payload" VALUES(1,NULL,NULL,X'28B52FFD600F02550900161237205087D60146C83396722DBD3610D38C0B24A2114EAEB4C6D7A7A9868B9199F91E2C002D002E008FDEDD43020FF7DDB96F7A32A0890DC4BD889B1503D9F2213F8C4BA66CF6265BF28B9D0E414BE7C4BAF3229DCB9D4E4B18DD6F41B31FE27B0D6CF907FC99B425ECE66174BF6C2603749B58D4E8F78708EFED10C8F939046245082568FACB233D1DBB395341519495A8A530B6945210555582B67406C6857D7F997D5E308C0CD36BC09DE9C90613CF93CC888B677370FDBFE93C4ECB04748FB158CF644018C2125D8A5255B658A2D45140163B8E4455D74A00D8DF061C00F53B1C01CBD533230302A004A8ABCCDC8B1971996DF35946804E37DB80673100723F86604735DE4CC25F0801155998CA1A93804449C0DA2097215A493951C3BCFC8AC3531D89AE507B',NULL);
INSERT INTO "rollout_payload" VALUES(2,NULL,NULL,X'28B52FFD602B025D0A00B6933C214049D501E8B4F3A72836D5D2A0251A8ACACDEEFAAD4514BE7F12B22B1D47510E043100320032008FFA6D5E1DC8D8BC1278B9EFD17DD7A401D04C28EE55DCDC0CE8D397FC7232BAB4D9217DCACE6C95089E3A1FD69D112A059326E072ABF454CEF88BD0EC05D37120F9F413F875B1A7B2A197333EB3BA0C32EE6155A21F468F2A3C36AFBC3972B90A4601ED608CB182B13B6BC00AA6EEA8B1A69EDDAC4B016065712C698873066389D20AF7D4A19C0CFBFEC27D46B09C10F646DCBA02D3A4FC4CC6152A88FDBF2A4DD2D3838CCE8358D765281410A42D6E319665318EE480FA8D67B87B32307A8E9634B7282D31182B202E2000016438A4E0AA9CC900CE100750E42C363B330FE1BC7456379C057DB3373883C0B462009D7AB641A54500DEED9887F9147E33097F21045464612A6B4C021225016D83BC0DE74ACA891CF3D2113832D591E80AB507',NULL);
CREATE TABLE row_tag (
	run_id INTEGER NOT NULL, 
	tag VARCHAR NOT NULL, 
	row_id INTEGER NOT NULL, 
	PRIMARY KEY (run_id, tag, row_id), 
	FOREIGN KEY(run_id) REFERENCES run (id), 
	FOREIGN KEY(row_id) REFERENCES evaluation_row (id)
)
 WITHOUT ROWID

;
CREATE TABLE run (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	uid VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	project VARCHAR, 
	parent VARCHAR, 
	output_dir VARCHAR, 
	state VARCHAR DEFAULT 'running' NOT NULL, 
	created BIGINT NOT NULL, 
	heartbeat BIGINT NOT NULL, 
	finished BIGINT, 
	error VARCHAR, 
	traceback VARCHAR, 
	model VARCHAR, 
	max_steps INTEGER, 
	num_generations INTEGER, 
	host VARCHAR, 
	pid INTEGER, 
	git_commit VARCHAR, 
	git_dirty BOOLEAN, 
	tokenizer VARCHAR, 
	config JSON DEFAULT '{}' NOT NULL, 
	versions JSON DEFAULT '{}' NOT NULL, 
	diagnosis JSON, 
	changed BIGINT DEFAULT '0' NOT NULL, 
	recorder_errors INTEGER DEFAULT '0' NOT NULL, 
	dropped INTEGER DEFAULT '0' NOT NULL, 
	dropped_payloads INTEGER DEFAULT '0' NOT NULL, 
	pruned INTEGER DEFAULT '0' NOT NULL, 
	unattributed_calls INTEGER DEFAULT '0' NOT NULL, 
	unattributed_scoring INTEGER DEFAULT '0' NOT NULL, 
	last_recorder_error VARCHAR, 
	UNIQUE (uid)
);
INSERT INTO "run" VALUES(1,'20260101-100000-abcd','by an earlier commit',NULL,NULL,NULL,'finished',1795694105789186,1795694107192493,1795694105806200,NULL,NULL,NULL,NULL,NULL,'trainer-0',4242,NULL,NULL,NULL,'{}','{"python":"3.11.7","logs-ui":"0.0.1","trl":"1.16.0","transformers":"5.23.0","torch":"2.13.0+cpu","accelerate":"1.15.0","openenv":"0.10.0","numpy":"2.4.6"}','null',1,0,0,0,0,0,0,NULL);
CREATE TABLE run_source (
	run_id INTEGER NOT NULL, 
	kind VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	hash VARCHAR, 
	weight FLOAT, 
	PRIMARY KEY (run_id, kind, name), 
	FOREIGN KEY(run_id) REFERENCES run (id), 
	FOREIGN KEY(hash) REFERENCES text (hash)
);
CREATE TABLE scalar (
	run_id INTEGER NOT NULL, 
	step INTEGER NOT NULL, 
	name VARCHAR NOT NULL, 
	value FLOAT, 
	PRIMARY KEY (run_id, step, name), 
	FOREIGN KEY(run_id) REFERENCES run (id)
);
CREATE TABLE step_details (
	run_id INTEGER NOT NULL, 
	mode VARCHAR NOT NULL, 
	eval_name VARCHAR NOT NULL, 
	step INTEGER NOT NULL, 
	made BIGINT NOT NULL, 
	statuses JSON NOT NULL, 
	stop_reasons JSON NOT NULL, 
	reward_p10 FLOAT, 
	reward_p90 FLOAT, 
	groups INTEGER NOT NULL, 
	dead_groups INTEGER NOT NULL, 
	rewards JSON NOT NULL, 
	tokens_known INTEGER NOT NULL, 
	tokens_sum INTEGER NOT NULL, 
	turns_known INTEGER NOT NULL, 
	turns_sum INTEGER NOT NULL, 
	seconds_known INTEGER NOT NULL, 
	seconds_sum FLOAT NOT NULL, 
	PRIMARY KEY (run_id, mode, eval_name, step), 
	FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "step_details" VALUES(1,'eval','rollouts',0,1795694107204719,'{"ok":2}','{"done":1,"turn_limit":1}',9.99999999999999777955e-02,0.9,1,0,'{}',0,0,2,4,2,5.32072001078631728887e-04);
CREATE TABLE step_statistics (
	run_id INTEGER NOT NULL, 
	mode VARCHAR NOT NULL, 
	eval_name VARCHAR NOT NULL, 
	step INTEGER NOT NULL, 
	rollouts INTEGER NOT NULL, 
	scored INTEGER NOT NULL, 
	reward_sum FLOAT NOT NULL, 
	errors INTEGER NOT NULL, 
	truncated INTEGER NOT NULL, 
	stale BOOLEAN DEFAULT '1' NOT NULL, 
	PRIMARY KEY (run_id, mode, eval_name, step), 
	FOREIGN KEY(run_id) REFERENCES run (id)
);
INSERT INTO "step_statistics" VALUES(1,'eval','rollouts',0,2,2,1.0,0,0,0);
CREATE TABLE text (
	hash VARCHAR NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (hash)
);
CREATE TABLE tokenizer (
	hash VARCHAR NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (hash)
);
CREATE TABLE writer_position (
	writer VARCHAR NOT NULL, 
	parcel BIGINT NOT NULL, 
	process INTEGER NOT NULL, 
	n INTEGER NOT NULL, 
	written BIGINT NOT NULL, 
	PRIMARY KEY (writer)
);
INSERT INTO "writer_position" VALUES('trainer-0-4242-430a02cbf2c6',1,0,0,1795694107179136);
CREATE INDEX row_by_task ON evaluation_row (run_id, task, id);
CREATE INDEX row_by_kind ON evaluation_row (run_id, task, eval_name, mode, status, stop_reason, reward, step, created);
CREATE INDEX row_by_id ON evaluation_row (run_id, id);
CREATE INDEX row_by_step ON evaluation_row (run_id, step, eval_name, mode, status, stop_reason, reward, "group");
CREATE INDEX row_by_group ON evaluation_row ("group");
CREATE INDEX row_not_ok ON evaluation_row (run_id, status, id) WHERE status != 'ok';
CREATE INDEX row_by_reward ON evaluation_row (run_id, reward, id, stop_reason);
CREATE INDEX row_by_change ON evaluation_row (run_id, changed);
CREATE INDEX step_stale ON step_statistics (run_id) WHERE stale;
CREATE INDEX tag_by_row ON row_tag (row_id);
CREATE INDEX payload_by_content_start ON rollout_payload (content_start) WHERE content_start IS NOT NULL;
CREATE INDEX payload_by_tokens_start ON rollout_payload (tokens_start) WHERE tokens_start IS NOT NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('run',2);
INSERT INTO "sqlite_sequence" VALUES('evaluation_row',2);
COMMIT;
