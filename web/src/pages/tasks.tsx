// The tasks of an array: how far it is, a heat map, and the log of a task in one click.

import { useState } from "preact/hooks";
import { clock, number, roughly, seconds } from "../format";
import { useResource } from "../hooks";
import type { Group, Results } from "../job_types";
import { Log } from "../parts/log";
import { A, Badge, Section, Text } from "../parts/ui";
import type { Job, JobId } from "../types";
import { countedMembers, HeatMap, TaskBar } from "./groups";
import { concerns, endText } from "./reasons";

// Tasks that the heat map shows.
const MOST = 2000;

export function TasksSection({ job, group, isMine }: { job: Job; group: Group; isMine: boolean }) {
  const found = useResource<Results>(`/jobs?all=1&jobs=${job.id}&form=results-json&limit=${MOST}`, concerns(String(job.id)));
  const [chosen, setChosen] = useState<JobId | null>(null);
  // The record of the tasks that wait is one of the results.
  const tasks = (found.data?.results ?? []).filter((one) => /^\d+_\d+$/.test(String(one.id)));
  const members = countedMembers(group.total, group.counts, tasks);
  // Until the user chooses a task, the first that failed: its log is what the view is opened for.
  const failed = tasks.find((task) => task.state === "Failed" || task.state === "Timeout");
  const shown = chosen === null ? failed : tasks.find((task) => task.id === chosen);
  return (
    <>
      <Section title={`Tasks (${number(group.total)})`} more={<GroupEnd group={group} />}>
        <TaskBar members={members} />
        {tasks.length > 0 && <p class="muted">A click on a task shows its log. {found.data && found.data.total > MOST && `The first ${number(MOST)} are shown.`}</p>}
        <HeatMap members={members} chosen={shown?.id ?? null} onChoose={setChosen} />
      </Section>
      {shown && (
        <Section title={`Task ${shown.id}`} more={<A to={`jobs/${shown.id}`}>Open the task</A>} class="wide">
          <p>
            <Badge state={shown.state} /> {shown.state !== "Finished" && shown.reason && <Text>{endText(shown)}</Text>}
            {shown.run_s !== null && <span class="muted"> {roughly(shown.run_s)}</span>}
          </p>
          {isMine && shown.attempts > 0 && <Log key={shown.id} id={shown.id} isRunning={shown.state === "Running"} />}
        </Section>
      )}
    </>
  );
}

/** How far a group is, and when it is expected to end; or when it ended. */
export function GroupEnd({ group }: { group: Group }) {
  return <span class="muted">{endOf(group)}</span>;
}

function endOf(group: Group): string {
  if (group.finished_at) {
    const took = group.started_at ? `, after ${roughly(seconds(group.finished_at) - seconds(group.started_at))}` : "";
    return `ended ${clock(group.finished_at)}${took}`;
  }
  const done = `${Math.floor(group.progress * 100)} % done`;
  return group.ends_at && group.left_s !== null ? `${done}, ends about ${clock(group.ends_at)} (${roughly(group.left_s)} left)` : done;
}
