PRAGMA application_id = 1734765687;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE blobs (
    hash  TEXT PRIMARY KEY,
    bytes BLOB NOT NULL
);
INSERT INTO "blobs" VALUES('6949d9a8dea1c49a51ea387cc478e7bcb4970453',X'504154483D2F7573722F62696E3A2F62696E00484F4D453D2F686F6D652F616E6E004C414E473D432E5554462D38');
CREATE TABLE holds (
    gpu INTEGER PRIMARY KEY,
    key INTEGER NOT NULL REFERENCES jobs (key)
);
INSERT INTO "holds" VALUES(0,5242880);
INSERT INTO "holds" VALUES(1,5242880);
INSERT INTO "holds" VALUES(2,5242880);
INSERT INTO "holds" VALUES(3,5242880);
CREATE TABLE jobs (
    key          INTEGER PRIMARY KEY,
    uid          INTEGER NOT NULL,
    user         TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state IN
                 ('Queued', 'Hold', 'Running', 'Finished', 'Failed', 'Cancelled', 'Timeout')),
    reason       TEXT NOT NULL,
    attempt      INTEGER NOT NULL CHECK (attempt >= 0),
    gpu_ids      TEXT NOT NULL,
    submitted_at REAL NOT NULL,
    started_at   REAL,
    started_boot REAL,
    finished_at  REAL,
    exit_code    INTEGER,
    signal       INTEGER,
    stopping     TEXT,
    target       TEXT NOT NULL,
    spec         TEXT NOT NULL,
    CHECK (state != 'Running' OR (attempt > 0 AND started_at IS NOT NULL)),
    CHECK (stopping IS NULL OR state = 'Running'),
    CHECK ((finished_at IS NOT NULL) = (state IN ('Finished', 'Failed', 'Cancelled', 'Timeout')))
);
INSERT INTO "jobs" VALUES(1048576,0,'root','Finished','',1,'0',1.79490101321096467972e+09,1.79490101321096467972e+09,501.328426551,1.79490101321775174141e+09,0,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1}');
INSERT INTO "jobs" VALUES(2097152,0,'root','Finished','',1,'0,1',1.79490101324780702591e+09,1.79490101324780702591e+09,501.365269061,1794901013.75136,0,NULL,NULL,'local','{"command":["sleep","0.5"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":2}');
INSERT INTO "jobs" VALUES(3145728,0,'root','Failed','ExitCode:1',1,'2',1.79490101328242683411e+09,1.79490101328242683411e+09,501.399888869,1.79490101328898453712e+09,1,NULL,NULL,'local','{"command":["false"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"bad","gpus":1}');
INSERT INTO "jobs" VALUES(4194304,0,'root','Finished','',1,'2',1.79490101342528343201e+09,1.79490101342528343201e+09,501.542744647,1.79490101362847137451e+09,0,NULL,NULL,'local','{"command":["sleep","0.2"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","gpus":1,"time_limit_s":600,"depends_on":[1048576]}');
INSERT INTO "jobs" VALUES(5242880,0,'root','Running','',1,'0,1,2,3',1.79490101596105647087e+09,1.79490101596105647087e+09,504.078517361,NULL,NULL,NULL,NULL,'local','{"command":["sleep","600"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"long","gpus":4}');
INSERT INTO "jobs" VALUES(6291456,0,'root','Queued','',0,'',1.79490101660527229309e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"6949d9a8dea1c49a51ea387cc478e7bcb4970453","name":"held","gpus":1}');
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value NOT NULL
) WITHOUT ROWID;
INSERT INTO "meta" VALUES('next_number',7);
CREATE TABLE submissions (
    uid   INTEGER NOT NULL,
    token TEXT NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    at    REAL NOT NULL,
    PRIMARY KEY (uid, token)
) WITHOUT ROWID;
INSERT INTO "submissions" VALUES(0,'1bd2fa993a783fced9d152cea6850b8f',2097152,1,1.79490101324780702591e+09);
INSERT INTO "submissions" VALUES(0,'1ca3ea201f0e531f3c40cfffd70c9ea7',3145728,1,1.79490101328242683411e+09);
INSERT INTO "submissions" VALUES(0,'226ab8bf720a6862bb9795e90e6a9609',4194304,1,1.79490101342528343201e+09);
INSERT INTO "submissions" VALUES(0,'7860fd81862e4b744602d8117023e1bc',1048576,1,1.79490101321096467972e+09);
INSERT INTO "submissions" VALUES(0,'7aff2d57d68ecaa7c6ea4662f53d1588',5242880,1,1.79490101596105647087e+09);
INSERT INTO "submissions" VALUES(0,'df4667d1020587205e204501dfeeefe0',6291456,1,1.79490101660527229309e+09);
CREATE INDEX jobs_active ON jobs (key) WHERE state IN ('Queued', 'Hold', 'Running');
CREATE INDEX jobs_of_user ON jobs (uid, key);
CREATE TRIGGER jobs_final BEFORE UPDATE ON jobs
WHEN old.state IN ('Finished', 'Failed', 'Cancelled', 'Timeout')
BEGIN SELECT raise(ABORT, 'a final job cannot change'); END;
CREATE INDEX holds_of_job ON holds (key);
COMMIT;
