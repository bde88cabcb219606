PRAGMA application_id = 1734765687;
PRAGMA user_version = 4;
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
INSERT INTO "audit" VALUES(1,1.79490123178193187714e+09,1048576,0,'pid 13586','submitted','');
INSERT INTO "audit" VALUES(2,1.79490123178193187714e+09,1048576,NULL,'daemon','started','attempt 1 on GPU 0');
INSERT INTO "audit" VALUES(3,1.79490123179313278198e+09,1048576,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(4,1.79490123183059573174e+09,2097152,0,'pid 13590','submitted','');
INSERT INTO "audit" VALUES(5,1.79490123183059573174e+09,2097152,NULL,'daemon','started','attempt 1 on GPU 0,1');
INSERT INTO "audit" VALUES(6,1.79490123186135673523e+09,3145728,0,'pid 13592','submitted','');
INSERT INTO "audit" VALUES(7,1.79490123186135673523e+09,3145728,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(8,1.79490123187682151794e+09,3145728,NULL,'daemon','failed','ExitCode:1');
INSERT INTO "audit" VALUES(9,1.79490123190789866447e+09,4194304,0,'pid 13594','submitted','');
INSERT INTO "audit" VALUES(10,1.79490123190789866447e+09,4194304,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(11,1.79490123192673039436e+09,4194304,NULL,'daemon','retry','after attempt 1: ExitCode:1; next in 10 s');
INSERT INTO "audit" VALUES(12,1.79490123195319318771e+09,5242880,0,'pid 13597','submitted','');
INSERT INTO "audit" VALUES(13,1.79490123195319318771e+09,5242881,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(14,1.79490123195319318771e+09,5242882,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(15,1.79490123195319318771e+09,5242883,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(16,1.79490123200422716141e+09,6291456,0,'pid 13603','submitted','');
INSERT INTO "audit" VALUES(17,1.79490123200422716141e+09,6291456,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(18,1.79490123206303620338e+09,5242882,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(19,1.79490123206923604012e+09,5242881,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(20,1.794901232071423769e+09,5242883,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(21,1.794901232071423769e+09,5242880,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(22,1.79490123221254229546e+09,6291456,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(23,1.794901232343511343e+09,2097152,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(24,1.79490123456432914734e+09,7340032,0,'pid 13641','submitted','');
INSERT INTO "audit" VALUES(25,1.79490123456432914734e+09,7340032,NULL,'daemon','started','attempt 1 on GPU 0,1,2,3');
INSERT INTO "audit" VALUES(26,1.79490123512552642822e+09,8388608,0,'pid 13644','submitted','');
INSERT INTO "audit" VALUES(27,1.79490123517967748642e+09,9437184,0,'pid 13656','submitted','');
INSERT INTO "audit" VALUES(28,1.79490123523519182205e+09,10485760,0,'pid 13666','submitted','');
INSERT INTO "audit" VALUES(29,1.79490123529265713692e+09,11534336,0,'pid 13676','submitted','');
INSERT INTO "audit" VALUES(30,1.79490123536298441887e+09,11534336,0,'pid 13686','held','');
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
    quick_ends   INTEGER NOT NULL DEFAULT 0, cpu_ms INTEGER NOT NULL DEFAULT 0, peak_kib INTEGER NOT NULL DEFAULT 0, retry_at REAL NOT NULL DEFAULT 0, stop_now INTEGER NOT NULL DEFAULT 0,
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
INSERT INTO "jobs" VALUES(1048576,0,'root','Finished','',1,'0',1.79490123178193187714e+09,1.79490123178193187714e+09,719.899393815,1.79490123179313278198e+09,0,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1}',NULL,0,0,2,8912,0.0,0);
INSERT INTO "jobs" VALUES(2097152,0,'root','Finished','',1,'0,1',1.79490123183059573174e+09,1.79490123183059573174e+09,719.948057511,1.794901232343511343e+09,0,NULL,NULL,'local','{"command":["sleep","0.5"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":2}',NULL,0,0,2,8972,0.0,0);
INSERT INTO "jobs" VALUES(3145728,0,'root','Failed','ExitCode:1',1,'2',1.79490123186135673523e+09,1.79490123186135673523e+09,719.978818512,1.79490123187682151794e+09,1,NULL,NULL,'local','{"command":["false"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"bad","gpus":1}',NULL,0,0,1,8916,0.0,0);
INSERT INTO "jobs" VALUES(4194304,0,'root','Queued','Retry',1,'',1.79490123190789866447e+09,NULL,NULL,NULL,1,NULL,NULL,'local','{"command":["false"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1,"max_retries":1}',NULL,1,0,2,8912,1.79490124192673039436e+09,0);
INSERT INTO "jobs" VALUES(5242880,0,'root','Finished','',1,'',1.79490123195319318771e+09,1.79490123195319318771e+09,NULL,1.794901232071423769e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}','{"pending":"","ok":3}',0,0,6,8916,0.0,0);
INSERT INTO "jobs" VALUES(5242881,0,'root','Finished','',1,'',1.79490123195319318771e+09,1.79490123195319318771e+09,720.070654647,1.79490123206923604012e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0,2,8916,0.0,0);
INSERT INTO "jobs" VALUES(5242882,0,'root','Finished','',1,'',1.79490123195319318771e+09,1.79490123195319318771e+09,720.070654647,1.79490123206303620338e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0,2,8916,0.0,0);
INSERT INTO "jobs" VALUES(5242883,0,'root','Finished','',1,'',1.79490123195319318771e+09,1.79490123195319318771e+09,720.070654647,1.794901232071423769e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0,2,8912,0.0,0);
INSERT INTO "jobs" VALUES(6291456,0,'root','Finished','',1,'2',1.79490123200422716141e+09,1.79490123200422716141e+09,720.121688436,1.79490123221254229546e+09,0,NULL,NULL,'local','{"command":["sleep","0.2"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1,"time_limit_s":600,"depends_on":[1048576]}',NULL,0,0,2,8972,0.0,0);
INSERT INTO "jobs" VALUES(7340032,0,'root','Running','',1,'0,1,2,3',1.79490123456432914734e+09,1.79490123456432914734e+09,722.681790381,NULL,NULL,NULL,NULL,'local','{"command":["sleep","600"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"long","gpus":4}',NULL,0,0,0,0,0.0,0);
INSERT INTO "jobs" VALUES(8388608,0,'root','Queued','',0,'',1.79490123512552642822e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"waits","gpus":2,"project":"paper"}',NULL,0,0,0,0,0.0,0);
INSERT INTO "jobs" VALUES(9437184,0,'root','Queued','',0,'',1.79490123517967748642e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-9,"gpus":4,"array":"0-4"}','{"pending":"0-4"}',0,0,0,0,0.0,0);
INSERT INTO "jobs" VALUES(10485760,0,'root','Queued','',0,'',1.79490123523519182205e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"child","depends_on":[7340032]}',NULL,0,0,0,0,0.0,0);
INSERT INTO "jobs" VALUES(11534336,0,'root','Hold','JobHeldUser',0,'',1.79490123529265713692e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"held","gpus":1}',NULL,0,0,0,0,0.0,0);
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
INSERT INTO "submissions" VALUES(0,'345175abd1021711d180b9ebcecf02d0',5242880,1,1.79490123195319318771e+09);
INSERT INTO "submissions" VALUES(0,'35ea121b24dae667c7cf5f6bb9ab49f4',10485760,1,1.79490123523519182205e+09);
INSERT INTO "submissions" VALUES(0,'41165fb1d9283b0b3ce78090441cb4f0',1048576,1,1.79490123178193187714e+09);
INSERT INTO "submissions" VALUES(0,'9d3109ab3164316cd261270134fafc50',7340032,1,1.79490123456432914734e+09);
INSERT INTO "submissions" VALUES(0,'aa446133a6f15c812586d4ae6f4c857f',8388608,1,1.79490123512552642822e+09);
INSERT INTO "submissions" VALUES(0,'b702db3f3b7c095998879cab4368fce0',6291456,1,1.79490123200422716141e+09);
INSERT INTO "submissions" VALUES(0,'b7723dff1ec4d9275758367b12c7cc20',9437184,1,1.79490123517967748642e+09);
INSERT INTO "submissions" VALUES(0,'bbf34fd72b8cd2492760f812d57121b4',2097152,1,1.79490123183059573174e+09);
INSERT INTO "submissions" VALUES(0,'d57c1904a81ab5b97eacb752df5f968a',11534336,1,1.79490123529265713692e+09);
INSERT INTO "submissions" VALUES(0,'f196d9b480bb433c72ab264097afb603',3145728,1,1.79490123186135673523e+09);
INSERT INTO "submissions" VALUES(0,'f9e4a32595e7521ab4ec1103427fb99b',4194304,1,1.79490123190789866447e+09);
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
