PRAGMA application_id = 1734765687;
PRAGMA user_version = 2;
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
INSERT INTO "audit" VALUES(1,1.79490122134582519531e+09,1048576,0,'pid 13344','submitted','');
INSERT INTO "audit" VALUES(2,1.79490122134582519531e+09,1048576,NULL,'daemon','started','attempt 1 on GPU 0');
INSERT INTO "audit" VALUES(3,1.7949012213673479557e+09,1048576,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(4,1.79490122142155480385e+09,2097152,0,'pid 13347','submitted','');
INSERT INTO "audit" VALUES(5,1.79490122142155480385e+09,2097152,NULL,'daemon','started','attempt 1 on GPU 0,1');
INSERT INTO "audit" VALUES(6,1.79490122149183058739e+09,3145728,0,'pid 13350','submitted','');
INSERT INTO "audit" VALUES(7,1.79490122149183058739e+09,3145728,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(8,1.79490122150674462318e+09,3145728,NULL,'daemon','failed','ExitCode:1');
INSERT INTO "audit" VALUES(9,1.79490122153138017654e+09,4194304,0,'pid 13354','submitted','');
INSERT INTO "audit" VALUES(10,1.79490122153138017654e+09,4194304,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(11,1.79490122155474925041e+09,4194304,NULL,'daemon','retry','after attempt 1: ExitCode:1');
INSERT INTO "audit" VALUES(12,1.79490122155474925041e+09,4194304,NULL,'daemon','started','attempt 2 on GPU 2');
INSERT INTO "audit" VALUES(13,1.79490122155953073502e+09,4194304,NULL,'daemon','failed','ExitCode:1');
INSERT INTO "audit" VALUES(14,1.79490122158015275002e+09,5242880,0,'pid 13356','submitted','');
INSERT INTO "audit" VALUES(15,1.79490122158015275002e+09,5242881,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(16,1.79490122158015275002e+09,5242882,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(17,1.79490122158015275002e+09,5242883,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(18,1.79490122162944221497e+09,6291456,0,'pid 13363','submitted','');
INSERT INTO "audit" VALUES(19,1.79490122162944221497e+09,6291456,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(20,1.79490122168615889549e+09,5242882,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(21,1.79490122169372797012e+09,5242881,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(22,1.79490122169888210297e+09,5242883,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(23,1.79490122169888210297e+09,5242880,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(24,1.7949012218432803154e+09,6291456,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(25,1.79490122193601441383e+09,2097152,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(26,1.79490122418096041679e+09,7340032,0,'pid 13395','submitted','');
INSERT INTO "audit" VALUES(27,1.79490122418096041679e+09,7340032,NULL,'daemon','started','attempt 1 on GPU 0,1,2,3');
INSERT INTO "audit" VALUES(28,1.7949012247503964901e+09,8388608,0,'pid 13421','submitted','');
INSERT INTO "audit" VALUES(29,1.79490122482477712631e+09,9437184,0,'pid 13441','submitted','');
INSERT INTO "audit" VALUES(30,1.79490122489251112938e+09,10485760,0,'pid 13451','submitted','');
INSERT INTO "audit" VALUES(31,1.79490122496307897568e+09,11534336,0,'pid 13452','submitted','');
INSERT INTO "audit" VALUES(32,1.79490122502730178833e+09,11534336,0,'pid 13455','held','');
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
    quick_ends   INTEGER NOT NULL DEFAULT 0,
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
INSERT INTO "jobs" VALUES(1048576,0,'root','Finished','',1,'0',1.79490122134582519531e+09,1.79490122134582519531e+09,709.463287205,1.7949012213673479557e+09,0,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1}',NULL,0,0);
INSERT INTO "jobs" VALUES(2097152,0,'root','Finished','',1,'0,1',1.79490122142155480385e+09,1.79490122142155480385e+09,709.539016304,1.79490122193601441383e+09,0,NULL,NULL,'local','{"command":["sleep","0.5"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":2}',NULL,0,0);
INSERT INTO "jobs" VALUES(3145728,0,'root','Failed','ExitCode:1',1,'2',1.79490122149183058739e+09,1.79490122149183058739e+09,709.609292579,1.79490122150674462318e+09,1,NULL,NULL,'local','{"command":["false"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"bad","gpus":1}',NULL,0,0);
INSERT INTO "jobs" VALUES(4194304,0,'root','Failed','ExitCode:1',2,'2',1.79490122153138017654e+09,1.79490122155474925041e+09,709.672210035,1.79490122155953073502e+09,1,NULL,NULL,'local','{"command":["false"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1,"max_retries":1}',NULL,1,0);
INSERT INTO "jobs" VALUES(5242880,0,'root','Finished','',1,'',1.79490122158015275002e+09,1.79490122158015275002e+09,NULL,1.79490122169888210297e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}','{"pending":"","ok":3}',0,0);
INSERT INTO "jobs" VALUES(5242881,0,'root','Finished','',1,'',1.79490122158015275002e+09,1.79490122158015275002e+09,709.69761449,1.79490122169372797012e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0);
INSERT INTO "jobs" VALUES(5242882,0,'root','Finished','',1,'',1.79490122158015275002e+09,1.79490122158015275002e+09,709.69761449,1.79490122168615889549e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0);
INSERT INTO "jobs" VALUES(5242883,0,'root','Finished','',1,'',1.79490122158015275002e+09,1.79490122158015275002e+09,709.69761449,1.79490122169888210297e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0);
INSERT INTO "jobs" VALUES(6291456,0,'root','Finished','',1,'2',1.79490122162944221497e+09,1.79490122162944221497e+09,709.746903508,1.7949012218432803154e+09,0,NULL,NULL,'local','{"command":["sleep","0.2"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1,"time_limit_s":600,"depends_on":[1048576]}',NULL,0,0);
INSERT INTO "jobs" VALUES(7340032,0,'root','Running','',1,'0,1,2,3',1.79490122418096041679e+09,1.79490122418096041679e+09,712.298421453,NULL,NULL,NULL,NULL,'local','{"command":["sleep","600"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"long","gpus":4}',NULL,0,0);
INSERT INTO "jobs" VALUES(8388608,0,'root','Queued','',0,'',1.7949012247503964901e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"waits","gpus":2,"project":"paper"}',NULL,0,0);
INSERT INTO "jobs" VALUES(9437184,0,'root','Queued','',0,'',1.79490122482477712631e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-9,"gpus":4,"array":"0-4"}','{"pending":"0-4"}',0,0);
INSERT INTO "jobs" VALUES(10485760,0,'root','Queued','',0,'',1.79490122489251112938e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"child","depends_on":[7340032]}',NULL,0,0);
INSERT INTO "jobs" VALUES(11534336,0,'root','Hold','JobHeldUser',0,'',1.79490122496307897568e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"held","gpus":1}',NULL,0,0);
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
INSERT INTO "submissions" VALUES(0,'02dfee7ff48c9448ec2f51cccb45c7c4',5242880,1,1.79490122158015275002e+09);
INSERT INTO "submissions" VALUES(0,'07735135cc5ee6f1b1c65482b85ef705',4194304,1,1.79490122153138017654e+09);
INSERT INTO "submissions" VALUES(0,'08fca0ed5f6a8097863ed39fc195c5d3',3145728,1,1.79490122149183058739e+09);
INSERT INTO "submissions" VALUES(0,'1a9cef9bc438ca5b0a0837b57c826ee6',6291456,1,1.79490122162944221497e+09);
INSERT INTO "submissions" VALUES(0,'2c7e5f8bf77d8b960cd87bd861baf68a',11534336,1,1.79490122496307897568e+09);
INSERT INTO "submissions" VALUES(0,'5f5c49afeb550a66cb651507cb2b113e',1048576,1,1.79490122134582519531e+09);
INSERT INTO "submissions" VALUES(0,'a702b3e926bba9208d6c58e9fac641d2',10485760,1,1.79490122489251112938e+09);
INSERT INTO "submissions" VALUES(0,'c1a243605235975be7e16bbf520fd8cc',7340032,1,1.79490122418096041679e+09);
INSERT INTO "submissions" VALUES(0,'d6e375dbc700ad86f55ad7fc2e878f86',2097152,1,1.79490122142155480385e+09);
INSERT INTO "submissions" VALUES(0,'e7f94a5a4f7b2553ab1db66a7bbd03e5',8388608,1,1.7949012247503964901e+09);
INSERT INTO "submissions" VALUES(0,'fadcae064877485b9cc10511d99eaa84',9437184,1,1.79490122482477712631e+09);
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
