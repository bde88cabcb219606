// What happened to a job: its history, and its attempts if it started several times.

import { clock, duration, full, seconds } from "../format";
import { useResource } from "../hooks";
import { Section, Text } from "../parts/ui";
import type { History } from "../types";
import { concerns, endText } from "./reasons";

type Entry = History["events"][0];

interface Attempt {
  started: Entry;
  ended: Entry | null;
}

/** Each start with what ended it. */
function attemptsOf(events: Entry[]): Attempt[] {
  const found: Attempt[] = [];
  for (const entry of events) {
    const last = found[found.length - 1];
    if (entry.event === "started") found.push({ started: entry, ended: null });
    else if (last && !last.ended && ENDS.test(entry.event)) last.ended = entry;
  }
  return found;
}

/** How an attempt ended: `Exit code 9; next in 10 s`. */
function endWords({ event, detail }: Entry): string {
  const [, reason = detail, next = ""] = /^after attempt \d+: (.*?)(; next in .*)?$/.exec(detail) ?? [];
  return reason ? endText({ state: "Failed", reason, exit_code: null }) + next : event;
}

/** The detail of an entry: a reason in words, or the text of the daemon. */
function historyWords({ detail }: Entry): string {
  const isReason = /^[A-Z][A-Za-z]+(:|$)/.test(detail);
  const reason = isReason ? endText({ state: "Failed", reason: detail, exit_code: null }) : detail;
  const words = isReason ? reason[0]!.toLowerCase() + reason.slice(1) : reason;
  return words.replace(/\bGPU (\d+(?:,\d+)+)$/, (_all, list: string) => `GPUs ${list.replaceAll(",", ", ")}`);
}

const ENDS = /fail|finish|cancelled|timeout|timed out|requeue|retr|preempt|lost|exit/i;

export function Attempts({ path, id }: { path: string; id: string }) {
  const found = useResource<History>(`${path}/history`, concerns(id));
  const attempts = attemptsOf(found.data?.events ?? []);
  if (attempts.length < 2) return null;
  return (
    <Section title={`Attempts (${attempts.length})`}>
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th scope="col">Started</th>
              <th scope="col">Attempt</th>
              <th scope="col" class="num">
                Ran
              </th>
              <th scope="col">Ended</th>
            </tr>
          </thead>
          <tbody>
            {attempts.map(({ started, ended }) => (
              <tr>
                <td title={full(started.at)}>{clock(started.at)}</td>
                <td>
                  <Text>{started.detail.replace(/^attempt /, "")}</Text>
                </td>
                <td class="num">{ended ? duration(seconds(ended.at) - seconds(started.at)) : ""}</td>
                <td>
                  {ended ? <Text>{endWords(ended)}</Text> : <span class="muted">runs</span>}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Section>
  );
}

export function HistorySection({ path, id }: { path: string; id: string }) {
  const found = useResource<History>(`${path}/history`, concerns(id));
  return (
    <Section title="History">
      <ol class="history">
        {(found.data?.events ?? []).map((entry) => (
          <li>
            <span class="num muted" title={full(entry.at)}>
              {clock(entry.at)}
            </span>
            <span>
              {entry.event}
              {entry.by && (
                <span class="muted">
                  {" "}
                  by <Text>{entry.by}</Text>
                </span>
              )}
              {entry.detail && (
                <span class="muted">
                  {" "}
                  <Text>{historyWords(entry)}</Text>
                </span>
              )}
            </span>
          </li>
        ))}
      </ol>
    </Section>
  );
}
