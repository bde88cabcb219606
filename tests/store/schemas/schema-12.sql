PRAGMA application_id = 1734765687;
PRAGMA user_version = 12;
BEGIN TRANSACTION;
CREATE TABLE attempts (
    key         INTEGER NOT NULL REFERENCES jobs (key) ON DELETE CASCADE,
    attempt     INTEGER NOT NULL,
    started_at  REAL NOT NULL,
    finished_at REAL NOT NULL,
    gpu_ids     TEXT NOT NULL, ran_s REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (key, attempt)
) WITHOUT ROWID;
INSERT INTO "attempts" VALUES(4194304,1,1.79501287441469311714e+09,1.79501287441721844673e+09,'3',2.5255680084228515625e-03);
CREATE TABLE audit (
    id     INTEGER PRIMARY KEY,
    at     REAL NOT NULL,
    key    INTEGER,
    uid    INTEGER,
    origin TEXT NOT NULL,
    what   TEXT NOT NULL,
    detail TEXT NOT NULL
);
INSERT INTO "audit" VALUES(1,1.79501287436642622948e+09,NULL,NULL,'daemon','daemon started','version 0.1.0');
INSERT INTO "audit" VALUES(2,1.79501287437890791893e+09,1048576,0,'pid 24980','submitted','');
INSERT INTO "audit" VALUES(3,1.79501287437890791893e+09,1048576,NULL,'daemon','started','attempt 1 on GPU 0');
INSERT INTO "audit" VALUES(4,1.79501287438462567329e+09,2097152,0,'pid 24980','submitted','');
INSERT INTO "audit" VALUES(5,1.79501287438462567329e+09,2097152,NULL,'daemon','started','attempt 1 on GPU 1,2');
INSERT INTO "audit" VALUES(6,1.79501287438903880119e+09,3145728,0,'pid 24980','submitted','');
INSERT INTO "audit" VALUES(7,1.79501287438903880119e+09,3145728,NULL,'daemon','started','attempt 1 on GPU 3');
INSERT INTO "audit" VALUES(8,1.79501287439331674576e+09,4194304,0,'pid 24980','submitted','');
INSERT INTO "audit" VALUES(9,1.79501287439853191376e+09,5242880,0,'pid 24980','submitted','');
INSERT INTO "audit" VALUES(10,1.79501287439853191376e+09,5242881,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(11,1.79501287439853191376e+09,5242882,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(12,1.79501287439853191376e+09,5242883,NULL,'daemon','started','attempt 1');
INSERT INTO "audit" VALUES(13,1.7950128744042365551e+09,6291456,0,'pid 24980','submitted','');
INSERT INTO "audit" VALUES(14,1.79501287441179180145e+09,1048576,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(15,1.79501287441179180145e+09,6291456,NULL,'daemon','started','attempt 1 on GPU 0');
INSERT INTO "audit" VALUES(16,1.79501287441469311714e+09,3145728,NULL,'daemon','failed','ExitCode:1');
INSERT INTO "audit" VALUES(17,1.79501287441469311714e+09,4194304,NULL,'daemon','started','attempt 1 on GPU 3');
INSERT INTO "audit" VALUES(18,1.79501287441721844673e+09,4194304,NULL,'daemon','retry','after attempt 1: ExitCode:1; next in 10 s');
INSERT INTO "audit" VALUES(19,1.79501287451244187355e+09,5242881,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(20,1.79501287451545190811e+09,5242882,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(21,1.79501287451671409607e+09,5242883,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(22,1.79501287451671409607e+09,5242880,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(23,1.79501287451671409607e+09,5242880,NULL,'daemon','group ended','array 5: 3 finished in 0 s');
INSERT INTO "audit" VALUES(24,1.79501287461575698853e+09,6291456,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(25,1.79501287491467189789e+09,2097152,NULL,'daemon','finished','');
INSERT INTO "audit" VALUES(26,1.79501287492675280571e+09,7340032,0,'pid 24980','submitted','');
INSERT INTO "audit" VALUES(27,1.79501287492675280571e+09,7340032,NULL,'daemon','started','attempt 1 on GPU 0,1,2,3');
INSERT INTO "audit" VALUES(28,1.79501287493131399155e+09,8388608,0,'pid 24980','submitted','');
INSERT INTO "audit" VALUES(29,1.79501287493403816223e+09,9437184,0,'pid 24980','submitted','');
INSERT INTO "audit" VALUES(30,1.79501287493658518791e+09,10485760,0,'pid 24980','submitted','');
INSERT INTO "audit" VALUES(31,1.79501287493905115128e+09,11534336,0,'pid 24980','submitted','');
CREATE TABLE blobs (
    hash  TEXT PRIMARY KEY,
    bytes BLOB NOT NULL
);
INSERT INTO "blobs" VALUES('39e11f5745f7b013a8873a48abfce4f0f5f7ee8f',X'504154483D2F7573722F62696E3A2F62696E');
CREATE TABLE bulk (
    id   INTEGER PRIMARY KEY,
    data TEXT NOT NULL,
    done INTEGER NOT NULL DEFAULT 0
);
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
    quick_ends   INTEGER NOT NULL DEFAULT 0, cpu_ms INTEGER NOT NULL DEFAULT 0, peak_kib INTEGER NOT NULL DEFAULT 0, retry_at REAL NOT NULL DEFAULT 0, stop_now INTEGER NOT NULL DEFAULT 0, simulated INTEGER NOT NULL DEFAULT 0, ready_at INTEGER NOT NULL DEFAULT 0, abroad TEXT, headway TEXT, ran_s REAL, retry_boot REAL NOT NULL DEFAULT 0,
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
INSERT INTO "jobs" VALUES(1048576,0,'root','Finished','',1,'0',1.79501287437890791893e+09,1.79501287437890791893e+09,1.79501287437889719009e+09,1.79501287441179180145e+09,0,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"39e11f5745f7b013a8873a48abfce4f0f5f7ee8f","default_name":"true","gpus":1}',NULL,0,0,0,944,0.0,0,1,1.79501287437889719009e+09,NULL,NULL,3.28834056854248046875e-02,0.0);
INSERT INTO "jobs" VALUES(2097152,0,'root','Finished','',1,'1,2',1.79501287438462567329e+09,1.79501287438462567329e+09,1.79501287438461470604e+09,1.79501287491467189789e+09,0,NULL,NULL,'local','{"command":["sleep","0.5"],"cwd":"/tmp","environ":"39e11f5745f7b013a8873a48abfce4f0f5f7ee8f","default_name":"sleep","gpus":2}',NULL,0,0,0,1152,0.0,0,1,1.79501287438461470604e+09,NULL,NULL,0.530045747756958,0.0);
INSERT INTO "jobs" VALUES(3145728,0,'root','Failed','ExitCode:1',1,'3',1.79501287438903880119e+09,1.79501287438903880119e+09,1.79501287438902759552e+09,1.79501287441469311714e+09,1,NULL,NULL,'local','{"command":["false"],"cwd":"/tmp","environ":"39e11f5745f7b013a8873a48abfce4f0f5f7ee8f","name":"bad","gpus":1}',NULL,0,0,0,940,0.0,0,1,1.79501287438902759552e+09,NULL,NULL,2.5653839111328125e-02,0.0);
INSERT INTO "jobs" VALUES(4194304,0,'root','Queued','Retry',1,'',1.79501287439331674576e+09,NULL,NULL,NULL,1,NULL,NULL,'local','{"command":["false"],"cwd":"/tmp","environ":"39e11f5745f7b013a8873a48abfce4f0f5f7ee8f","default_name":"false","gpus":1,"max_retries":1}',NULL,1,0,0,952,1.79501288441721844673e+09,0,1,1.79501287439330530167e+09,NULL,NULL,NULL,1.79501288441720700264e+09);
INSERT INTO "jobs" VALUES(5242880,0,'root','Finished','',1,'',1.79501287439853191376e+09,1.79501287439853191376e+09,1.79501287439852070808e+09,1.79501287451671409607e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"39e11f5745f7b013a8873a48abfce4f0f5f7ee8f","group":-5,"default_name":"sleep","array":"0-2"}','{"pending":"","ok":3}',0,0,0,1144,0.0,0,0,1.79501287439852070808e+09,NULL,NULL,1.18181467056274414062e-01,0.0);
INSERT INTO "jobs" VALUES(5242881,0,'root','Finished','',1,'',1.79501287439853191376e+09,1.79501287439853191376e+09,1.79501287439852070808e+09,1.79501287451244187355e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"39e11f5745f7b013a8873a48abfce4f0f5f7ee8f","group":-5,"default_name":"sleep","array":"0-2"}',NULL,0,0,0,1140,0.0,0,0,0,NULL,NULL,1.1390972137451171875e-01,0.0);
INSERT INTO "jobs" VALUES(5242882,0,'root','Finished','',1,'',1.79501287439853191376e+09,1.79501287439853191376e+09,1.79501287439852070808e+09,1.79501287451545190811e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"39e11f5745f7b013a8873a48abfce4f0f5f7ee8f","group":-5,"default_name":"sleep","array":"0-2"}',NULL,0,0,0,1144,0.0,0,0,0,NULL,NULL,1.1691951751708984375e-01,0.0);
INSERT INTO "jobs" VALUES(5242883,0,'root','Finished','',1,'',1.79501287439853191376e+09,1.79501287439853191376e+09,1.79501287439852070808e+09,1.79501287451671409607e+09,0,NULL,NULL,'local','{"command":["sleep","0.1"],"cwd":"/tmp","environ":"39e11f5745f7b013a8873a48abfce4f0f5f7ee8f","group":-5,"default_name":"sleep","array":"0-2"}',NULL,0,0,0,1144,0.0,0,0,0,NULL,NULL,1.18181467056274414062e-01,0.0);
INSERT INTO "jobs" VALUES(6291456,0,'root','Finished','',1,'0',1.7950128744042365551e+09,1.79501287441179180145e+09,1.79501287441178059578e+09,1.79501287461575698853e+09,0,NULL,NULL,'local','{"command":["sleep","0.2"],"cwd":"/tmp","environ":"39e11f5745f7b013a8873a48abfce4f0f5f7ee8f","default_name":"sleep","gpus":1,"time_limit_s":600,"depends_on":[1048576]}',NULL,0,0,0,1152,0.0,0,1,1.79501287441178059578e+09,NULL,NULL,0.203965425491333,0.0);
INSERT INTO "jobs" VALUES(7340032,0,'root','Running','',1,'0,1,2,3',1.79501287492675280571e+09,1.79501287492675280571e+09,1.7950128749267411232e+09,NULL,NULL,NULL,NULL,'local','{"command":["sleep","600"],"cwd":"/tmp","environ":"39e11f5745f7b013a8873a48abfce4f0f5f7ee8f","name":"long","gpus":4}',NULL,0,0,0,0,0.0,0,1,1.7950128749267411232e+09,NULL,NULL,NULL,0.0);
INSERT INTO "jobs" VALUES(8388608,0,'root','Queued','',0,'',1.79501287493131399155e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"39e11f5745f7b013a8873a48abfce4f0f5f7ee8f","name":"waits","gpus":2,"project":"paper"}',NULL,0,0,0,0,0.0,0,0,1.79501287493130230904e+09,NULL,NULL,NULL,0.0);
INSERT INTO "jobs" VALUES(9437184,0,'root','Queued','',0,'',1.79501287493403816223e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"39e11f5745f7b013a8873a48abfce4f0f5f7ee8f","group":-9,"default_name":"true","gpus":4,"array":"0-4"}','{"pending":"0-4"}',0,0,0,0,0.0,0,0,1.79501287493402671814e+09,NULL,NULL,NULL,0.0);
INSERT INTO "jobs" VALUES(10485760,0,'root','Queued','',0,'',1.79501287493658518791e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"39e11f5745f7b013a8873a48abfce4f0f5f7ee8f","name":"child","depends_on":[7340032]}',NULL,0,0,0,0,0.0,0,0,0,NULL,NULL,NULL,0.0);
INSERT INTO "jobs" VALUES(11534336,0,'root','Hold','JobHeldUser',0,'',1.79501287493905115128e+09,NULL,NULL,NULL,NULL,NULL,NULL,'local','{"command":["true"],"cwd":"/tmp","environ":"39e11f5745f7b013a8873a48abfce4f0f5f7ee8f","name":"held","gpus":1,"hold":true}',NULL,0,0,0,0,0.0,0,0,0,NULL,NULL,NULL,0.0);
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value NOT NULL
) WITHOUT ROWID;
INSERT INTO "meta" VALUES('boot_clock','{"boot_id":"8f23346f-0ba5-473e-8d23-99b91c5dd118","offset":1794962293.249144}');
INSERT INTO "meta" VALUES('kind','private 0');
INSERT INTO "meta" VALUES('launch_epoch','8f23346f-0ba5-473e-8d23-99b91c5dd118 ext4:16337 65024:16762356:1795012874341649079');
INSERT INTO "meta" VALUES('next_number',12);
INSERT INTO "meta" VALUES('shares','{"uses":{"0":[1.3251192638768445,1795012874.9267411]}}');
CREATE TABLE submissions (
    uid   INTEGER NOT NULL,
    token TEXT NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    at    REAL NOT NULL,
    PRIMARY KEY (uid, token)
) WITHOUT ROWID;
INSERT INTO "submissions" VALUES(0,'07587142cfe3678a',10485760,1,1.79501287493658518791e+09);
INSERT INTO "submissions" VALUES(0,'74dc7740efd383ce',7340032,1,1.79501287492675280571e+09);
INSERT INTO "submissions" VALUES(0,'7b64bb19c9d976f2',3145728,1,1.79501287438903880119e+09);
INSERT INTO "submissions" VALUES(0,'7fc0db93415d1929',2097152,1,1.79501287438462567329e+09);
INSERT INTO "submissions" VALUES(0,'8cdd5c2ad236b823',1048576,1,1.79501287437890791893e+09);
INSERT INTO "submissions" VALUES(0,'9dfad541b8454fa8',11534336,1,1.79501287493905115128e+09);
INSERT INTO "submissions" VALUES(0,'9ecfffa64bcb5c92',4194304,1,1.79501287439331674576e+09);
INSERT INTO "submissions" VALUES(0,'a5a69a24a3fb8dcc',9437184,1,1.79501287493403816223e+09);
INSERT INTO "submissions" VALUES(0,'bcd48dfe24751c6c',6291456,1,1.7950128744042365551e+09);
INSERT INTO "submissions" VALUES(0,'c24527308cbd4726',5242880,1,1.79501287439853191376e+09);
INSERT INTO "submissions" VALUES(0,'f53590b38d5f4818',8388608,1,1.79501287493131399155e+09);
CREATE INDEX jobs_active ON jobs (key) WHERE finished_at IS NULL;
CREATE INDEX jobs_of_user ON jobs (uid, key);
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX holds_of_job ON holds (key);
CREATE TRIGGER holds_alone BEFORE INSERT ON holds
WHEN EXISTS (SELECT 1 FROM holds WHERE gpu = new.gpu AND (memory_mib = 0 OR new.memory_mib = 0))
BEGIN SELECT raise(ABORT, 'a GPU cannot be given to two jobs unless both share'); END;
CREATE INDEX audit_of_job ON audit (key, id);
CREATE INDEX jobs_cut_off ON jobs (reason) WHERE reason LIKE 'DependencyFailed:%';
CREATE TRIGGER jobs_final BEFORE UPDATE ON jobs
WHEN old.finished_at IS NOT NULL
BEGIN SELECT raise(ABORT, 'a final job cannot change'); END;
CREATE INDEX jobs_failed ON jobs (finished_at) WHERE state IN ('Failed', 'Timeout');
COMMIT;
