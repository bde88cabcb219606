// Why a job waits, or why it ended: the first thing that people want to know.

import { clock, full } from "../format";
import { useNow, useResource } from "../hooks";
import type { Diagnosis, Evidence, Finding, Group } from "../job_types";
import { A, Text } from "../parts/ui";
import type { Job, Why } from "../types";
import { aboutJobs } from "./overview";
import { concerns, endHint, endText, waitText } from "./reasons";

interface VerdictProps {
  job: Job;
  path: string;
  group: Group | null;
  isMine: boolean;
  // Shows the line of the log that begins at this byte.
  onLine: (offset: number) => void;
}

export function Verdict({ job, path, group, isMine, onLine }: VerdictProps) {
  const isWaiting = job.state === "Queued" || job.state === "Hold";
  const hasFailed = job.state === "Failed" || job.state === "Timeout";
  const why = useResource<Why>(isWaiting ? `${path}/why` : null, aboutJobs);
  const isDiagnosed = hasFailed && isMine && job.tasks === null;
  const found = useResource<Diagnosis>(isDiagnosed ? `${path}/diagnosis` : null, concerns(String(job.id)));
  if (group?.counts.failed) return <FailedTasks group={group} />;
  if (isWaiting) return why.data ? <WaitVerdict why={why.data} /> : null;
  if (job.state === "Running" || job.state === "Finished") return null;
  const [first, ...others] = found.data?.findings ?? [];
  const hint = first ? "" : endHint(job);
  return (
    <div class={`verdict is-${job.state.toLowerCase()}`}>
      <p>
        <strong>
          <Text>{endText(job)}</Text>
        </strong>
      </p>
      {found.data && !first && <p>No known cause was found.</p>}
      {hint && <p>{hint}</p>}
      {found.data?.log_error && (
        <p>
          <Text>{`No log: ${found.data.log_error}`}</Text>
        </p>
      )}
      {first && <Cause finding={first} onLine={onLine} />}
      {others.length > 0 && (
        <details>
          <summary>Also found ({others.length})</summary>
          {others.map((one) => (
            <Cause finding={one} onLine={onLine} />
          ))}
        </details>
      )}
    </div>
  );
}

const SURE: Record<string, string> = { certain: "Cause", likely: "Probable cause", possible: "Possible cause" };

function place(fact: Evidence): string {
  if (fact.source !== "log") return fact.source;
  return fact.line ? `log line ${fact.line}` : "in the log";
}

/** A cause: what it rests on, and what to do. */
function Cause({ finding, onLine }: { finding: Finding; onLine: (offset: number) => void }) {
  const { evidence, frame } = finding;
  const offset = evidence?.offset ?? null;
  return (
    <div class="cause">
      <p>
        <span class="sure">{SURE[finding.confidence] ?? finding.confidence}</span> <Text>{finding.summary}</Text>
      </p>
      {evidence && evidence.source !== "record" && (
        <p class="evidence">
          <button type="button" class="quiet" disabled={offset === null} onClick={() => offset !== null && onLine(offset)} title="show this line in the log">
            <span class="to-line">{place(evidence)}</span>
            {evidence.rank !== null && <span>, rank {evidence.rank}</span>}: <code><Text>{evidence.text}</Text></code>
          </button>
        </p>
      )}
      {frame && (
        <p class="evidence">
          at <code><Text>{`${frame.file}:${frame.line}`}</Text></code> in <code><Text>{frame.function}</Text></code>
          {frame.code && (
            <>
              : <code><Text>{frame.code}</Text></code>
            </>
          )}
        </p>
      )}
      {finding.support.map((fact) => (
        <p class="evidence">
          {place(fact)}: <Text>{fact.text}</Text>
        </p>
      ))}
      {finding.advice.length > 0 && (
        <ul>
          {finding.advice.map((line) => (
            <li>
              <Text>{line}</Text>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function FailedTasks({ group }: { group: Group }) {
  const count = group.counts.failed;
  return (
    <div class="verdict is-failed">
      <p>
        <strong>{count === 1 ? "1 task failed: " : `${count.toLocaleString("en-US")} tasks failed: `}</strong>
        {group.failed_jobs.map((task, index) => (
          <>
            {index > 0 && ", "}
            <A to={`jobs/${task.id}`}>{task.id}</A> (<Text>{endText(task)}</Text>)
          </>
        ))}
        {count > group.failed_jobs.length && " …"}
      </p>
    </div>
  );
}

/** A text in which `job 42` is a link. */
function WithLinks({ children }: { children: string }) {
  return (
    <>
      {children.split(/(\bjob \d+(?:_\d+)?\b)/i).map((part, index) =>
        index % 2 ? <A to={`jobs/${part.slice(4)}`}>{part}</A> : <Text>{part}</Text>,
      )}
    </>
  );
}

function WaitVerdict({ why }: { why: Why }) {
  const now = useNow(10_000);
  return (
    <div class="verdict is-queued">
      {why.blockers.map((blocker, index) => (
        <p>
          {index === 0 ? (
            <strong>
              <WithLinks>{waitText(blocker.code, blocker.detail)}</WithLinks>
            </strong>
          ) : (
            <WithLinks>{blocker.detail ? blocker.detail[0]!.toUpperCase() + blocker.detail.slice(1) : blocker.code}</WithLinks>
          )}
        </p>
      ))}
      {why.start && (
        <p>
          Expected to start <b title={full(why.start.expected)}>about {clock(why.start.expected, now)}</b>
          <span class="muted">
            {" "}
            (between {clock(why.start.earliest, now)} and {clock(why.start.latest, now)})
          </span>
        </p>
      )}
      {why.instead.length > 0 && (
        <p>
          It would start now with{" "}
          {why.instead.map((change, index) => (
            <>
              {index > 0 && " or "}
              <code>
                <Text>{change}</Text>
              </code>
            </>
          ))}
        </p>
      )}
    </div>
  );
}
