PRAGMA application_id = 1734765687;
PRAGMA user_version = 6;
BEGIN TRANSACTION;
CREATE TABLE audit (
    id     INTEGER PRIMARY KEY,
    at     REAL NOT NULL,
    key    INTEGER,
    uid    INTEGER,
    origin TEXT NOT NULL,
    what   TEXT NOT NULL,
    detail TEXT NOT NULL
);
INSERT INTO "audit" VALUES(1,1.79490124344792771339e+09,NULL,NULL,'daemon','daemon started','version 0.1.0');
INSERT INTO "audit" VALUES(2,1.79490124354251551628e+09,1048576,0,'pid 13895','submitted','');
INSERT INTO "audit" VALUES(3,1.79490124354251551628e+09,1048576,NULL,'daemon','started','attempt 1 on GPU 0');
INSERT INTO "audit" VALUES(4,1.79490124356110787392e+09,1048576,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(5,1794901243.5891,2097152,0,'pid 13899','submitted','');
INSERT INTO "audit" VALUES(6,1794901243.5891,2097152,NULL,'daemon','started','attempt 1 on GPU 0,1');
INSERT INTO "audit" VALUES(7,1.79490124364194345474e+09,3145728,0,'pid 13901','submitted','');
INSERT INTO "audit" VALUES(8,1.79490124364194345474e+09,3145728,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(9,1.79490124366278195381e+09,3145728,NULL,'daemon','failed','ExitCode:1');
INSERT INTO "audit" VALUES(10,1.7949012436859266758e+09,4194304,0,'pid 13904','submitted','');
INSERT INTO "audit" VALUES(11,1.7949012436859266758e+09,4194304,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(12,1.79490124370325565338e+09,4194304,NULL,'daemon','retry','after attempt 1: ExitCode:1; next in 10 s');
INSERT INTO "audit" VALUES(13,1.79490124372727704048e+09,5242880,0,'pid 13905','submitted','');
INSERT INTO "audit" VALUES(14,1.79490124372727704048e+09,5242881,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(15,1.79490124372727704048e+09,5242882,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(16,1.79490124372727704048e+09,5242883,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(17,1.79490124377283501625e+09,6291456,0,'pid 13911','submitted','');
INSERT INTO "audit" VALUES(18,1.79490124377283501625e+09,6291456,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(19,1.79490124383732533455e+09,5242881,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(20,1.79490124384825921059e+09,5242883,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(21,1.79490124384990334511e+09,5242882,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(22,1.79490124384990334511e+09,5242880,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(23,1.79490124398565864563e+09,6291456,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(24,1.79490124410668158531e+09,2097152,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(25,1.79490124631981945038e+09,7340032,0,'pid 13916','submitted','');
INSERT INTO "audit" VALUES(26,1.79490124631981945038e+09,7340032,NULL,'daemon','started','attempt 1 on GPU 0,1,2,3');
INSERT INTO "audit" VALUES(27,1.79490124688384723663e+09,8388608,0,'pid 13919','submitted','');
INSERT INTO "audit" VALUES(28,1.79490124694351744652e+09,9437184,0,'pid 13920','submitted','');
INSERT INTO "audit" VALUES(29,1.7949012469889755249e+09,10485760,0,'pid 13921','submitted','');
INSERT INTO "audit" VALUES(30,1.79490124703130459785e+09,11534336,0,'pid 13922','submitted','');
INSERT INTO "audit" VALUES(31,1.79490124733272886276e+09,11534336,0,'pid 13923','held','');
CREATE TABLE blobs (
    hash  TEXT PRIMARY KEY,
    bytes BLOB NOT NULL
);
INSERT INTO "blobs" VALUES('6949d9a8dea1c49a51ea387cc478e7bcb4970453',X'504154483D2F7573722F62696E3A2F62696E00484F4D453D2F686F6D652F616E6E004C414E473D432E5554462D38');
CREATE TABLE "holds" (
    gpu        INTEGER NOT NULL,
    key        INTEGER NOT NULL REFERENCES jobs (key),
    memory_mib INTEGER NOT NULL CHECK (memory_mib >= 0),
    PRIMARY KEY (gpu, key)
) WITHOUT ROWID;
INSERT INTO "holds" VALUES(0,7340032,0);
INSERT INTO "holds" VALUES(1,7340032,0);
INSERT INTO "holds" VALUES(2,7340032,0);
INSERT INTO "holds" VALUES(3,7340032,0);
CREATE TABLE "jobs" (
    key          INTEGER PRIMARY KEY,
    uid          INTEGER NOT NULL,
    user         TEXT NOT NULL,
    state        TEXT NOT NULL,
    reason       TEXT NOT NULL DEFAULT '',
    attempt      INTEGER NOT NULL DEFAULT 0,
    gpu_ids      TEXT NOT NULL DEFAULT '',
    submitted_at REAL NOT NULL,
    started_at   REAL,
    started_boot REAL,
    finished_at  REAL,
    exit_code    INTEGER,
    signal       INTEGER,
    stopping     TEXT,
    target       TEXT NOT NULL,
    spec         TEXT NOT NULL,
    progress     TEXT,
    retries      INTEGER NOT NULL DEFAULT 0,
    quick_ends   INTEGER NOT NULL DEFAULT 0, cpu_ms INTEGER NOT NULL DEFAULT 0, peak_kib INTEGER NOT NULL DEFAULT 0, retry_at REAL NOT NULL DEFAULT 0, stop_now INTEGER NOT NULL DEFAULT 0, simulated INTEGER NOT NULL DEFAULT 0, passed INTEGER NOT NULL DEFAULT 0,
    CHECK (CASE state
        WHEN 'Queued' THEN finished_at IS NULL AND stopping IS NULL
        WHEN 'Running' THEN finished_at IS NULL AND attempt > 0 AND started_at IS NOT NULL
        WHEN 'Hold' THEN finished_at IS NULL AND stopping IS NULL
        WHEN 'Finished' THEN finished_at IS NOT NULL AND stopping IS NULL
        WHEN 'Failed' THEN finished_at IS NOT NULL AND stopping IS NULL
        WHEN 'Cancelled' THEN finished_at IS NOT NULL AND stopping IS NULL
        WHEN 'Timeout' THEN finished_at IS NOT NULL AND stopping IS NULL
        ELSE 0 END)
);
INSERT INTO "jobs" VALUES(1048576,0,'root','Finished','',1,'0',1.79490124354251551628e+09,1.79490124354251551628e+09,731.659977239,1.79490124356110787392e+09,0,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1}',NULL,0,0,2,8972,0.0,0,1,0);
INSERT INTO "jobs" VALUES(2097152,0,'root','Finished','',1,'0,1',1794901243.5891,1794901243.5891,731.706561633,1.79490124410668158531e+09,0,NULL,NULL,'local','{"command":["sleep","0.5"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":2}',NULL,0,0,2,8972,0.0,0,1,1);
INSERT INTO "jobs" VALUES(3145728,0,'root','Failed','ExitCode:1',1,'2',1.79490124364194345474e+09,1.79490124364194345474e+09,731.759405038,1.79490124366278195381e+09,1,NULL,NULL,'local','{"command":["false"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"bad","gpus":1}',NULL,0,0,2,8976,0.0,0,1,3);
INSERT INTO "jobs" VALUES(4194304,0,'root','Queued','Retry',1,'',1.7949012436859266758e+09,NULL,NULL,NULL,1,NULL,NULL,'local','{"command":["false"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1,"max_retries":1}',NULL,1,0,1,8912,1.79490125370325565338e+09,0,1,4);
INSERT INTO "jobs" VALUES(5242880,0,'root','Finished','',1,'',1.79490124372727704048e+09,1.79490124372727704048e+09,NULL,1.79490124384990334511e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}','{"pending":"","ok":3}',0,0,6,8976,0.0,0,0,0);
INSERT INTO "jobs" VALUES(5242881,0,'root','Finished','',1,'',1.79490124372727704048e+09,1.79490124372727704048e+09,731.844738396,1.79490124383732533455e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0,2,8976,0.0,0,0,0);
INSERT INTO "jobs" VALUES(5242882,0,'root','Finished','',1,'',1.79490124372727704048e+09,1.79490124372727704048e+09,731.844738396,1.79490124384990334511e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0,2,8976,0.0,0,0,0);
INSERT INTO "jobs" VALUES(5242883,0,'root','Finished','',1,'',1.79490124372727704048e+09,1.79490124372727704048e+09,731.844738396,1.79490124384825921059e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0,2,8912,0.0,0,0,0);
INSERT INTO "jobs" VALUES(6291456,0,'root','Finished','',1,'2',1.79490124377283501625e+09,1.79490124377283501625e+09,731.890296098,1.79490124398565864563e+09,0,NULL,NULL,'local','{"command":["sleep","0.2"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1,"time_limit_s":600,"depends_on":[1048576]}',NULL,0,0,2,8972,0.0,0,1,5);
INSERT INTO "jobs" VALUES(7340032,0,'root','Running','',1,'0,1,2,3',1.79490124631981945038e+09,1.79490124631981945038e+09,734.437280365,NULL,NULL,NULL,NULL,'local','{"command":["sleep","600"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"long","gpus":4}',NULL,0,0,0,0,0.0,0,1,6);
INSERT INTO "jobs" VALUES(8388608,0,'root','Queued','',0,'',1.79490124688384723663e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"waits","gpus":2,"project":"paper"}',NULL,0,0,0,0,0.0,0,0,10);
INSERT INTO "jobs" VALUES(9437184,0,'root','Queued','',0,'',1.79490124694351744652e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-9,"gpus":4,"array":"0-4"}','{"pending":"0-4"}',0,0,0,0,0.0,0,0,12);
INSERT INTO "jobs" VALUES(10485760,0,'root','Queued','',0,'',1.7949012469889755249e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"child","depends_on":[7340032]}',NULL,0,0,0,0,0.0,0,0,0);
INSERT INTO "jobs" VALUES(11534336,0,'root','Hold','JobHeldUser',0,'',1.79490124703130459785e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"held","gpus":1}',NULL,0,0,0,0,0.0,0,0,16);
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value NOT NULL
) WITHOUT ROWID;
INSERT INTO "meta" VALUES('next_number',12);
INSERT INTO "meta" VALUES('shares','{"passed":[11,3],"uses":{"0":[1.3047431637745308,1794901246.3198195]}}');
CREATE TABLE submissions (
    uid   INTEGER NOT NULL,
    token TEXT NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    at    REAL NOT NULL,
    PRIMARY KEY (uid, token)
) WITHOUT ROWID;
INSERT INTO "submissions" VALUES(0,'0305d05f6d87532b635816e771972aaa',10485760,1,1.7949012469889755249e+09);
INSERT INTO "submissions" VALUES(0,'03bda560bcbd961056b8c430318dc179',4194304,1,1.7949012436859266758e+09);
INSERT INTO "submissions" VALUES(0,'35be6e8f11fc80b3a2d57e7318105f94',2097152,1,1794901243.5891);
INSERT INTO "submissions" VALUES(0,'646fefd1b97882b7c9ff7cbc97d77165',9437184,1,1.79490124694351744652e+09);
INSERT INTO "submissions" VALUES(0,'72e9a64ac1c366fbed1db1c4f39e7044',7340032,1,1.79490124631981945038e+09);
INSERT INTO "submissions" VALUES(0,'862f3dba292c40c3908ec7573446a8db',11534336,1,1.79490124703130459785e+09);
INSERT INTO "submissions" VALUES(0,'95a97a6ce76eea16a89ff4f06c42d84a',5242880,1,1.79490124372727704048e+09);
INSERT INTO "submissions" VALUES(0,'a7d04a3f3a2ea7a0b118905424538339',3145728,1,1.79490124364194345474e+09);
INSERT INTO "submissions" VALUES(0,'bfe0a05f715c6e212e85f2a2facbe051',6291456,1,1.79490124377283501625e+09);
INSERT INTO "submissions" VALUES(0,'c2defd45137e66b5d84b98eec8414985',1048576,1,1.79490124354251551628e+09);
INSERT INTO "submissions" VALUES(0,'f41dac5693487819ae538e0e8705d312',8388608,1,1.79490124688384723663e+09);
CREATE INDEX jobs_active ON jobs (key) WHERE finished_at IS NULL;
CREATE INDEX jobs_of_user ON jobs (uid, key);
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE TRIGGER jobs_final BEFORE UPDATE ON jobs
WHEN old.finished_at IS NOT NULL
BEGIN SELECT raise(ABORT, 'a final job cannot change'); END;
CREATE INDEX holds_of_job ON holds (key);
CREATE TRIGGER holds_alone BEFORE INSERT ON holds
WHEN EXISTS (SELECT 1 FROM holds WHERE gpu = new.gpu AND (memory_mib = 0 OR new.memory_mib = 0))
BEGIN SELECT raise(ABORT, 'a GPU cannot be given to two jobs unless both share'); END;
CREATE INDEX audit_of_job ON audit (key, id);
CREATE INDEX jobs_cut_off ON jobs (reason) WHERE reason LIKE 'DependencyFailed:%';
COMMIT;
