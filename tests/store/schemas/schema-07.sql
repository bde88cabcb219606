PRAGMA application_id = 1734765687;
PRAGMA user_version = 7;
BEGIN TRANSACTION;
CREATE TABLE attempts (
    key         INTEGER NOT NULL REFERENCES jobs (key) ON DELETE CASCADE,
    attempt     INTEGER NOT NULL,
    started_at  REAL NOT NULL,
    finished_at REAL NOT NULL,
    gpu_ids     TEXT NOT NULL,
    PRIMARY KEY (key, attempt)
) WITHOUT ROWID;
INSERT INTO "attempts" VALUES(4194304,1,1.79490101798228311539e+09,1.79490101798738336563e+09,'2');
CREATE TABLE audit (
    id     INTEGER PRIMARY KEY,
    at     REAL NOT NULL,
    key    INTEGER,
    uid    INTEGER,
    origin TEXT NOT NULL,
    what   TEXT NOT NULL,
    detail TEXT NOT NULL
);
INSERT INTO "audit" VALUES(1,1.79490101781278944016e+09,NULL,NULL,'daemon','daemon started','version 0.1.0');
INSERT INTO "audit" VALUES(2,1.79490101789226818085e+09,1048576,0,'pid 8838','submitted','');
INSERT INTO "audit" VALUES(3,1.79490101789226818085e+09,1048576,NULL,'daemon','started','attempt 1 on GPU 0');
INSERT INTO "audit" VALUES(4,1.79490101789889740944e+09,1048576,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(5,1.79490101792490959167e+09,2097152,0,'pid 8841','submitted','');
INSERT INTO "audit" VALUES(6,1.79490101792490959167e+09,2097152,NULL,'daemon','started','attempt 1 on GPU 0,1');
INSERT INTO "audit" VALUES(7,1.79490101795223879814e+09,3145728,0,'pid 8842','submitted','');
INSERT INTO "audit" VALUES(8,1.79490101795223879814e+09,3145728,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(9,1.79490101795682525635e+09,3145728,NULL,'daemon','failed','ExitCode:1');
INSERT INTO "audit" VALUES(10,1.79490101798228311539e+09,4194304,0,'pid 8846','submitted','');
INSERT INTO "audit" VALUES(11,1.79490101798228311539e+09,4194304,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(12,1.79490101798738336563e+09,4194304,NULL,'daemon','retry','after attempt 1: ExitCode:1; next in 10 s');
INSERT INTO "audit" VALUES(13,1.79490101801157212257e+09,5242880,0,'pid 8848','submitted','');
INSERT INTO "audit" VALUES(14,1.79490101801157212257e+09,5242881,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(15,1.79490101801157212257e+09,5242882,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(16,1.79490101801157212257e+09,5242883,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(17,1.79490101804296326637e+09,6291456,0,'pid 8851','submitted','');
INSERT INTO "audit" VALUES(18,1.79490101804296326637e+09,6291456,NULL,'daemon','started','attempt 1 on GPU 2');
INSERT INTO "audit" VALUES(19,1.79490101811845111847e+09,5242881,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(20,1.79490101812446308136e+09,5242882,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(21,1.79490101812947320938e+09,5242883,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(22,1.79490101812947320938e+09,5242880,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(23,1.79490101824871921539e+09,6291456,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(24,1.79490101843148136139e+09,2097152,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(25,1.79490102057377099991e+09,7340032,0,'pid 8879','submitted','');
INSERT INTO "audit" VALUES(26,1.79490102057377099991e+09,7340032,NULL,'daemon','started','attempt 1 on GPU 0,1,2,3');
INSERT INTO "audit" VALUES(27,1.79490102110372328758e+09,8388608,0,'pid 8882','submitted','');
INSERT INTO "audit" VALUES(28,1.79490102112994766235e+09,9437184,0,'pid 8883','submitted','');
INSERT INTO "audit" VALUES(29,1.79490102115663290024e+09,10485760,0,'pid 8884','submitted','');
INSERT INTO "audit" VALUES(30,1.79490102118368721008e+09,11534336,0,'pid 8885','submitted','');
INSERT INTO "audit" VALUES(31,1.79490102124193620682e+09,11534336,0,'pid 8886','held','');
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
INSERT INTO "jobs" VALUES(1048576,0,'root','Finished','',1,'0',1.79490101789226818085e+09,1.79490101789226818085e+09,506.009730322,1.79490101789889740944e+09,0,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1}',NULL,0,0,2,9008,0.0,0,1,0);
INSERT INTO "jobs" VALUES(2097152,0,'root','Finished','',1,'0,1',1.79490101792490959167e+09,1.79490101792490959167e+09,506.042371668,1.79490101843148136139e+09,0,NULL,NULL,'local','{"command":["sleep","0.5"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":2}',NULL,0,0,2,9068,0.0,0,1,1);
INSERT INTO "jobs" VALUES(3145728,0,'root','Failed','ExitCode:1',1,'2',1.79490101795223879814e+09,1.79490101795223879814e+09,506.069700792,1.79490101795682525635e+09,1,NULL,NULL,'local','{"command":["false"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"bad","gpus":1}',NULL,0,0,2,9008,0.0,0,1,3);
INSERT INTO "jobs" VALUES(4194304,0,'root','Queued','Retry',1,'',1.79490101798228311539e+09,NULL,NULL,NULL,1,NULL,NULL,'local','{"command":["false"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1,"max_retries":1}',NULL,1,0,1,9008,1.79490102798738336563e+09,0,1,4);
INSERT INTO "jobs" VALUES(5242880,0,'root','Finished','',1,'',1.79490101801157212257e+09,1.79490101801157212257e+09,NULL,1.79490101812947320938e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}','{"pending":"","ok":3}',0,0,6,9068,0.0,0,0,0);
INSERT INTO "jobs" VALUES(5242881,0,'root','Finished','',1,'',1.79490101801157212257e+09,1.79490101801157212257e+09,506.129033272,1.79490101811845111847e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0,2,9068,0.0,0,0,0);
INSERT INTO "jobs" VALUES(5242882,0,'root','Finished','',1,'',1.79490101801157212257e+09,1.79490101801157212257e+09,506.129033272,1.79490101812446308136e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0,2,9068,0.0,0,0,0);
INSERT INTO "jobs" VALUES(5242883,0,'root','Finished','',1,'',1.79490101801157212257e+09,1.79490101801157212257e+09,506.129033272,1.79490101812947320938e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-5,"array":"0-2"}',NULL,0,0,2,9068,0.0,0,0,0);
INSERT INTO "jobs" VALUES(6291456,0,'root','Finished','',1,'2',1.79490101804296326637e+09,1.79490101804296326637e+09,506.160424115,1.79490101824871921539e+09,0,NULL,NULL,'local','{"command":["sleep","0.2"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1,"time_limit_s":600,"depends_on":[1048576]}',NULL,0,0,2,9008,0.0,0,1,5);
INSERT INTO "jobs" VALUES(7340032,0,'root','Running','',1,'0,1,2,3',1.79490102057377099991e+09,1.79490102057377099991e+09,508.691232349,NULL,NULL,NULL,NULL,'local','{"command":["sleep","600"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"long","gpus":4}',NULL,0,0,0,0,0.0,0,1,6);
INSERT INTO "jobs" VALUES(8388608,0,'root','Queued','',0,'',1.79490102110372328758e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"waits","gpus":2,"project":"paper"}',NULL,0,0,0,0,0.0,0,0,10);
INSERT INTO "jobs" VALUES(9437184,0,'root','Queued','',0,'',1.79490102112994766235e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","group":-9,"gpus":4,"array":"0-4"}','{"pending":"0-4"}',0,0,0,0,0.0,0,0,12);
INSERT INTO "jobs" VALUES(10485760,0,'root','Queued','',0,'',1.79490102115663290024e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"child","depends_on":[7340032]}',NULL,0,0,0,0,0.0,0,0,0);
INSERT INTO "jobs" VALUES(11534336,0,'root','Hold','JobHeldUser',0,'',1.79490102118368721008e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"held","gpus":1}',NULL,0,0,0,0,0.0,0,0,16);
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value NOT NULL
) WITHOUT ROWID;
INSERT INTO "meta" VALUES('next_number',12);
INSERT INTO "meta" VALUES('shares','{"passed":[11,3],"uses":{"0":[1.235212022314328,1794901020.573771]}}');
CREATE TABLE submissions (
    uid   INTEGER NOT NULL,
    token TEXT NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    at    REAL NOT NULL,
    PRIMARY KEY (uid, token)
) WITHOUT ROWID;
INSERT INTO "submissions" VALUES(0,'09ae36a2ec26a21a48044b6c400b58ec',2097152,1,1.79490101792490959167e+09);
INSERT INTO "submissions" VALUES(0,'0aaeb23e8fd2ec30e2650548cf56441c',6291456,1,1.79490101804296326637e+09);
INSERT INTO "submissions" VALUES(0,'12144705bbfdd111e14a94d57b5959fd',9437184,1,1.79490102112994766235e+09);
INSERT INTO "submissions" VALUES(0,'3c2a775540dfb50b616710f4ab567879',10485760,1,1.79490102115663290024e+09);
INSERT INTO "submissions" VALUES(0,'549717a5894a628d3b0e35a6554ac21b',4194304,1,1.79490101798228311539e+09);
INSERT INTO "submissions" VALUES(0,'7cca105fbffd9db432e32bc7b1dd52aa',1048576,1,1.79490101789226818085e+09);
INSERT INTO "submissions" VALUES(0,'7cdb62d61797dda0536a2fb93bf72241',11534336,1,1.79490102118368721008e+09);
INSERT INTO "submissions" VALUES(0,'b4e2219588a2aeccf1a617291c861ed5',3145728,1,1.79490101795223879814e+09);
INSERT INTO "submissions" VALUES(0,'b87beb7efab2d7e5a1925eed979054d0',7340032,1,1.79490102057377099991e+09);
INSERT INTO "submissions" VALUES(0,'c339e8d357c5bba8ca62cc89cc07b06c',5242880,1,1.79490101801157212257e+09);
INSERT INTO "submissions" VALUES(0,'e1d43e4ed7a8b5d6be5296a7198601b1',8388608,1,1.79490102110372328758e+09);
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
