PRAGMA application_id = 1734765687;
PRAGMA user_version = 3;
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
INSERT INTO "audit" VALUES(1,1.79490122638370513916e+09,1048576,0,'pid 13481','submitted','');
INSERT INTO "audit" VALUES(2,1.79490122638370513916e+09,1048576,NULL,'daemon','started','attempt 1 on GPU 0');
INSERT INTO "audit" VALUES(3,1.79490122640678429604e+09,1048576,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(4,1.794901226447722435e+09,2097152,0,'pid 13483','submitted','');
INSERT INTO "audit" VALUES(5,1.794901226447722435e+09,2097152,NULL,'daemon','started','attempt 1 on GPU 0,1');
INSERT INTO "audit" VALUES(6,1.79490122650130486488e+09,3145728,0,'pid 13487','submitted','');
INSERT INTO "audit" VALUES(7,1.79490122650130486488e+09,3145728,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(8,1.79490122654680585861e+09,3145728,NULL,'daemon','failed','ExitCode:1');
INSERT INTO "audit" VALUES(9,1.79490122657850527763e+09,4194304,0,'pid 13489','submitted','');
INSERT INTO "audit" VALUES(10,1.79490122657850527763e+09,4194304,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(11,1.79490122659929656982e+09,4194304,NULL,'daemon','retry','after attempt 1: ExitCode:1');
INSERT INTO "audit" VALUES(12,1.79490122659929656982e+09,4194304,NULL,'daemon','started','attempt 2 on GPU 2');
INSERT INTO "audit" VALUES(13,1.79490122661368346214e+09,4194304,NULL,'daemon','failed','ExitCode:1');
INSERT INTO "audit" VALUES(14,1.79490122663976144791e+09,5242880,0,'pid 13491','submitted','');
INSERT INTO "audit" VALUES(15,1.79490122663976144791e+09,5242881,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(16,1.79490122663976144791e+09,5242882,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(17,1.79490122663976144791e+09,5242883,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(18,1.79490122672362852097e+09,6291456,0,'pid 13495','submitted','');
INSERT INTO "audit" VALUES(19,1.79490122672362852097e+09,6291456,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(20,1.79490122676337218285e+09,5242881,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(21,1.79490122677123188972e+09,5242882,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(22,1.79490122679378581047e+09,5242883,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(23,1.79490122679378581047e+09,5242880,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(24,1794901226.9396,6291456,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(25,1.7949012269664144516e+09,2097152,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(26,1.7949012292916328907e+09,7340032,0,'pid 13527','submitted','');
INSERT INTO "audit" VALUES(27,1.7949012292916328907e+09,7340032,NULL,'daemon','started','attempt 1 on GPU 0,1,2,3');
INSERT INTO "audit" VALUES(28,1.79490122986075520515e+09,8388608,0,'pid 13550','submitted','');
INSERT INTO "audit" VALUES(29,1.7949012299196190834e+09,9437184,0,'pid 13552','submitted','');
INSERT INTO "audit" VALUES(30,1.79490122999240350723e+09,10485760,0,'pid 13553','submitted','');
INSERT INTO "audit" VALUES(31,1.79490123006003952026e+09,11534336,0,'pid 13554','submitted','');
INSERT INTO "audit" VALUES(32,1.79490123012739133835e+09,11534336,0,'pid 13555','held','');
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
    quick_ends   INTEGER NOT NULL DEFAULT 0, cpu_ms INTEGER NOT NULL DEFAULT 0, peak_kib INTEGER NOT NULL DEFAULT 0,
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
INSERT INTO "jobs" VALUES(1048576,0,'root','Finished','',1,'0',1.79490122638370513916e+09,1.79490122638370513916e+09,714.501167107,1.79490122640678429604e+09,0,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1}',NULL,0,0,1,8968);
INSERT INTO "jobs" VALUES(2097152,0,'root','Finished','',1,'0,1',1.794901226447722435e+09,1.794901226447722435e+09,714.565184543,1.7949012269664144516e+09,0,NULL,NULL,'local','{"command":["sleep","0.5"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":2}',NULL,0,0,2,8968);
INSERT INTO "jobs" VALUES(3145728,0,'root','Failed','ExitCode:1',1,'2',1.79490122650130486488e+09,1.79490122650130486488e+09,714.618766762,1.79490122654680585861e+09,1,NULL,NULL,'local','{"command":["false"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"bad","gpus":1}',NULL,0,0,1,8908);
INSERT INTO "jobs" VALUES(4194304,0,'root','Failed','ExitCode:1',2,'2',1.79490122657850527763e+09,1.79490122659929656982e+09,714.716757457,1.79490122661368346214e+09,1,NULL,NULL,'local','{"command":["false"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1,"max_retries":1}',NULL,1,0,4,8968);
INSERT INTO "jobs" VALUES(5242880,0,'root','Finished','',1,'',1.79490122663976144791e+09,1.79490122663976144791e+09,NULL,1.79490122679378581047e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}','{"pending":"","ok":3}',0,0,6,8908);
INSERT INTO "jobs" VALUES(5242881,0,'root','Finished','',1,'',1.79490122663976144791e+09,1.79490122663976144791e+09,714.757222606,1.79490122676337218285e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0,2,8908);
INSERT INTO "jobs" VALUES(5242882,0,'root','Finished','',1,'',1.79490122663976144791e+09,1.79490122663976144791e+09,714.757222606,1.79490122677123188972e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0,2,8908);
INSERT INTO "jobs" VALUES(5242883,0,'root','Finished','',1,'',1.79490122663976144791e+09,1.79490122663976144791e+09,714.757222606,1.79490122679378581047e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0,2,8908);
INSERT INTO "jobs" VALUES(6291456,0,'root','Finished','',1,'2',1.79490122672362852097e+09,1.79490122672362852097e+09,714.841089527,1794901226.9396,0,NULL,NULL,'local','{"command":["sleep","0.2"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1,"time_limit_s":600,"depends_on":[1048576]}',NULL,0,0,2,8968);
INSERT INTO "jobs" VALUES(7340032,0,'root','Running','',1,'0,1,2,3',1.7949012292916328907e+09,1.7949012292916328907e+09,717.409093921,NULL,NULL,NULL,NULL,'local','{"command":["sleep","600"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"long","gpus":4}',NULL,0,0,0,0);
INSERT INTO "jobs" VALUES(8388608,0,'root','Queued','',0,'',1.79490122986075520515e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"waits","gpus":2,"project":"paper"}',NULL,0,0,0,0);
INSERT INTO "jobs" VALUES(9437184,0,'root','Queued','',0,'',1.7949012299196190834e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-9,"gpus":4,"array":"0-4"}','{"pending":"0-4"}',0,0,0,0);
INSERT INTO "jobs" VALUES(10485760,0,'root','Queued','',0,'',1.79490122999240350723e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"child","depends_on":[7340032]}',NULL,0,0,0,0);
INSERT INTO "jobs" VALUES(11534336,0,'root','Hold','JobHeldUser',0,'',1.79490123006003952026e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"held","gpus":1}',NULL,0,0,0,0);
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value NOT NULL
) WITHOUT ROWID;
INSERT INTO "meta" VALUES('next_number',12);
CREATE TABLE submissions (
    uid   INTEGER NOT NULL,
    token TEXT NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    at    REAL NOT NULL,
    PRIMARY KEY (uid, token)
) WITHOUT ROWID;
INSERT INTO "submissions" VALUES(0,'07dc7c34fe69b74543ff88501f096bd0',5242880,1,1.79490122663976144791e+09);
INSERT INTO "submissions" VALUES(0,'0c405ac882e0be84a4dc8b915c0ef1d8',7340032,1,1.7949012292916328907e+09);
INSERT INTO "submissions" VALUES(0,'373c14fae4979cb1f9b09d47623ce8d2',6291456,1,1.79490122672362852097e+09);
INSERT INTO "submissions" VALUES(0,'3c9f60d299f5cf082905939ac70ca8bf',3145728,1,1.79490122650130486488e+09);
INSERT INTO "submissions" VALUES(0,'4dfcdf765191c2ef461e5234b67e6faf',9437184,1,1.7949012299196190834e+09);
INSERT INTO "submissions" VALUES(0,'790db87f301f50098cd2d5408f56ec87',1048576,1,1.79490122638370513916e+09);
INSERT INTO "submissions" VALUES(0,'8714cd5d75e6e7a9246d8b313447a2e0',2097152,1,1.794901226447722435e+09);
INSERT INTO "submissions" VALUES(0,'90c49e3c0e4dfe53a265b1d5615151f9',4194304,1,1.79490122657850527763e+09);
INSERT INTO "submissions" VALUES(0,'9e8fa7b4715447063a8c00ceee970045',10485760,1,1.79490122999240350723e+09);
INSERT INTO "submissions" VALUES(0,'d37942c8cb57d9a75549870646523882',11534336,1,1.79490123006003952026e+09);
INSERT INTO "submissions" VALUES(0,'e27f7023bf779485adf1d91b03a1a45b',8388608,1,1.79490122986075520515e+09);
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
COMMIT;
