// A form that builds a gbatch line, shows it, and submits the same job.

import { useRef, useState } from "preact/hooks";
import { newToken, post, Problem } from "../api";
import { quote } from "../format";
import { navigate } from "../hooks";
import { CommandLine, Failure, Section, tell } from "../parts/ui";
import type { Jobs, Me } from "../types";

interface Fields {
  command: string;
  cwd: string;
  name: string;
  gpus: string;
  time: string;
  memory: string;
  "gpu-memory": string;
  shared: boolean;
  array: string;
  param: string;
  "depends-on": string;
  venv: string;
  hold: boolean;
}

const EMPTY: Fields = {
  command: "", cwd: "", name: "", gpus: "1", time: "", memory: "", "gpu-memory": "", shared: false, array: "",
  param: "", "depends-on": "", venv: "", hold: false,
};
const TEXTS = ["name", "gpus", "time", "memory", "gpu-memory", "array", "depends-on", "venv"] as const;
const FLAGS = ["shared", "hold"] as const;

export function SubmitPage({ me, query }: { me: Me | null; query: URLSearchParams }) {
  const [fields, setFields] = useState<Fields>({ ...EMPTY, command: query.get("command") ?? "" });
  const [error, setError] = useState<Problem | null>(null);
  const [isBusy, setBusy] = useState(false);
  // Kept when an answer is lost, so that submitting again does not make a second job.
  const token = useRef("");
  const cwd = fields.cwd || me?.home || "/";
  const set = (name: keyof Fields, value: string | boolean) => {
    token.current = "";
    setFields((before) => ({ ...before, [name]: value }));
  };
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    token.current ||= newToken();
    try {
      const made = await post<Jobs>("/jobs", { token: token.current, jobs: [requestOf(fields, cwd, me)] });
      const first = made.jobs[0];
      tell(made.total > 1 ? `Submitted ${made.total} jobs` : `Submitted job ${first?.id}`);
      if (first) navigate(made.total > 1 && first.group_id ? `sweeps/g${first.group_id}` : `jobs/${first.id}`);
    } catch (problem) {
      setError(problem instanceof Problem ? problem : new Problem(0, "", "the daemon does not answer", ""));
      if (problem instanceof Problem) token.current = "";
    }
    setBusy(false);
  };
  const text = (name: (typeof TEXTS)[number] | "cwd" | "param", label: string, hint: string, size = "") => (
    <label class={`field ${size}`}>
      <span>{label}</span>
      <input
        value={fields[name] as string}
        placeholder={hint}
        onInput={(event) => set(name, event.currentTarget.value)}
        autocomplete="off"
        spellcheck={false}
      />
    </label>
  );
  return (
    <>
      <h1>New job</h1>
      <form onSubmit={(event) => void submit(event)} class="submit">
        <Section title="Program">
          <label class="field">
            <span>Command</span>
            <textarea
              rows={2}
              required
              value={fields.command}
              placeholder="python train.py --lr 0.1"
              onInput={(event) => set("command", event.currentTarget.value)}
              spellcheck={false}
            />
          </label>
          {text("cwd", "Working directory", me?.home ?? "")}
          {text("name", "Name", "from the command")}
          {text("venv", "Virtual environment", "none")}
        </Section>
        <Section title="Resources">
          <div class="fields">
            {text("gpus", "GPUs", "0", "small")}
            {text("gpu-memory", "GPU memory, each", "all, or 20G", "small")}
            {text("memory", "Host memory", "any, or 16G", "small")}
            {text("time", "Time limit", "none, or 4:00:00", "small")}
          </div>
          <label class="check">
            <input type="checkbox" checked={fields.shared} onChange={(event) => set("shared", event.currentTarget.checked)} />
            Share the GPUs with other shared jobs (set GPU memory, too)
          </label>
        </Section>
        <Section title="Dependencies, arrays, sweeps">
          <div class="fields">
            {text("depends-on", "Start after job", "id, such as 42", "small")}
            {text("array", "Array tasks", "such as 1-10", "small")}
            {text("param", "Sweep parameters", "lr=0.1,0.01", "small")}
          </div>
          <label class="check">
            <input type="checkbox" checked={fields.hold} onChange={(event) => set("hold", event.currentTarget.checked)} />
            Hold the job until it is released
          </label>
        </Section>
        <Section title="The same on the command line">
          <CommandLine text={lineOf(fields, cwd)} />
          <p class="muted hint">The job gets only basic variables (HOME, PATH, USER). Without --export NONE, gbatch passes those of your shell.</p>
        </Section>
        {error && <Failure error={error} />}
        <div class="buttons">
          <button type="submit" class="primary" disabled={isBusy || !fields.command.trim()}>
            Submit
          </button>
        </div>
      </form>
    </>
  );
}

function optionsOf(fields: Fields): Record<string, unknown> {
  const options: Record<string, unknown> = {};
  for (const name of TEXTS) if (fields[name].trim()) options[name] = fields[name].trim();
  for (const name of FLAGS) if (fields[name]) options[name] = true;
  if (options.gpus === "0") delete options.gpus;
  if (fields.param.trim()) options.param = fields.param.trim().split(/\s+/);
  return options;
}

function requestOf(fields: Fields, cwd: string, me: Me | null): unknown {
  const home = me?.home ?? "/";
  const user = me?.user ?? "";
  const environment = { HOME: home, USER: user, LOGNAME: user, SHELL: "/bin/bash", LANG: "C.UTF-8", PATH: `${home}/.local/bin:/usr/local/bin:/usr/bin:/bin` };
  const text = Object.entries(environment).map(([name, value]) => `${name}=${value}`).join("\0");
  const environ = btoa(String.fromCharCode(...new TextEncoder().encode(text)));
  return { command: ["bash", "-c", fields.command.trim()], cwd, environ, options: optionsOf(fields) };
}

function lineOf(fields: Fields, cwd: string): string {
  const words = ["gbatch", "--export NONE"];
  for (const [name, value] of Object.entries(optionsOf(fields))) {
    if (value === true) words.push(`--${name}`);
    else if (Array.isArray(value)) words.push(...value.map((one) => `--${name} ${quote(String(one))}`));
    else words.push(`--${name} ${quote(String(value))}`);
  }
  words.push(quote(fields.command.trim() || "COMMAND"));
  return `cd ${quote(cwd)} && ${words.join(" ")}`;
}
