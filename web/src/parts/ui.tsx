// Small parts that all pages use.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Problem } from "../api";
import { plain, roughly } from "../format";
import { BASE, navigate } from "../hooks";
import type { Job, JobId, State } from "../types";
import { Shape } from "./icons";

/** A link within the page. */
export function A({ to, children, ...more }: { to: string } & JSX.IntrinsicElements["a"]) {
  const follow = (event: MouseEvent) => {
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    navigate(to);
  };
  return (
    <a href={BASE + to} onClick={follow} {...more}>
      {children}
    </a>
  );
}

/** Text of a user: control and direction characters are visible, and it does not affect what surrounds it. */
export function Text({ children, class: name }: { children: string; class?: string }) {
  return <bdi class={name}>{plain(children)}</bdi>;
}

export const WORDS: Record<State, string> = {
  Queued: "Waiting",
  Hold: "Held",
  Running: "Running",
  Finished: "Finished",
  Failed: "Failed",
  Cancelled: "Cancelled",
  Timeout: "Timed out",
};

export function Badge({ state, stopping }: { state: State; stopping?: boolean }) {
  const shown = stopping && state === "Running" ? "Stopping" : state;
  return (
    <span class={`badge is-${shown.toLowerCase()}`}>
      <Shape of={shown} />
      {shown === "Stopping" ? "Stopping" : WORDS[state]}
    </span>
  );
}

export function JobLink({ id, name }: { id: JobId; name?: string }) {
  return (
    <A to={`jobs/${id}`} class="job-link">
      <span class="id">{id}</span>
      {name && <Text class="name">{name}</Text>}
    </A>
  );
}

/** A bar with a value from 0 to 1. It has no text of its own, so it needs a label. */
export function Bar({ value, label, kind }: { value: number; label: string; kind?: string }) {
  const percent = Math.round(Math.min(1, Math.max(0, value)) * 100);
  return (
    <div
      class={`bar ${kind ?? ""}`}
      role="meter"
      aria-label={label}
      aria-valuenow={percent}
      aria-valuemin={0}
      aria-valuemax={100}
    >
      <i style={{ width: `${percent}%` }} />
    </div>
  );
}

export function JobProgress({ job }: { job: Job }) {
  const found = job.progress;
  if (!found || found.percent === null) return null;
  const left = found.left_s === null ? "" : `, about ${roughly(found.left_s)} left`;
  return (
    <span class="progress" title={`step ${found.step}${found.steps ? ` of ${found.steps}` : ""}${left}`}>
      <Bar value={found.percent / 100} label="progress of the job" kind="accent" />
      <span class="num">{found.percent} %</span>
      {found.left_s !== null && <span class="muted">{roughly(found.left_s)} left</span>}
    </span>
  );
}

export function Failure({ error }: { error: Problem }) {
  return (
    <div class="notice is-failed" role="alert">
      <Text>{error.message}</Text>
      {error.hint && (
        <>
          {" "}
          <span class="muted">
            <Text>{error.hint}</Text>
          </span>
        </>
      )}
    </div>
  );
}

export function Loading() {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 400);
    return () => clearTimeout(timer);
  }, []);
  return isLate ? <p class="muted">Loading…</p> : null;
}

export function Section({
  title,
  more,
  children,
  class: name,
}: {
  title: string;
  more?: ComponentChildren;
  children: ComponentChildren;
  class?: string;
}) {
  return (
    <section class={`panel ${name ?? ""}`}>
      <header>
        <h2>{title}</h2>
        {more}
      </header>
      {children}
    </section>
  );
}

/** A modal dialog; Escape closes it, and the focus returns to where it was. */
export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    box.current?.showModal();
  }, []);
  return (
    <dialog ref={box} onClose={onClose} aria-labelledby="dialog-title">
      <h2 id="dialog-title">{title}</h2>
      {children}
    </dialog>
  );
}

// Lines of code that are shown before it scrolls.
const MOST_LINES = 12;

/** Code of a user with its line breaks and tabs; other control characters are visible. */
export function Code({ children }: { children: string }) {
  const parts = children.split(/([\n\t])/);
  const isLong = parts.length > 2 * MOST_LINES;
  return (
    <code class={`lines ${isLong ? "is-long" : ""}`} tabIndex={isLong ? 0 : undefined}>
      {parts.map((part) => (part === "\n" || part === "\t" ? part : <Text>{part}</Text>))}
    </code>
  );
}

/** A command line with a button that copies it. */
export function CommandLine({ text }: { text: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <div class="command">
      <Code>{text}</Code>
      <button type="button" class="quiet" onClick={() => void copy()} aria-label={isCopied ? "copied" : "copy this line"}>
        {isCopied ? "Copied" : "Copy"}
      </button>
    </div>
  );
}

// ---------------------------------------------------------------- messages

let show: (text: string) => void = () => undefined;

/** Tell the user what happened, for some seconds. */
export function tell(text: string): void {
  show(text);
}

export function Messages() {
  const [text, setText] = useState("");
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    show = (now) => {
      setText(now);
      clearTimeout(timer);
      timer = setTimeout(() => setText(""), 5000);
    };
  }, []);
  return (
    <div class={`message ${text ? "" : "is-empty"}`} role="status">
      <Text>{text}</Text>
    </div>
  );
}

/** A line of a list of facts; nothing without a value. */
export function Fact({ name, value, title, isCode }: { name: string; value: string | null; title?: string; isCode?: boolean }) {
  if (!value) return null;
  return (
    <div>
      <dt>{name}</dt>
      <dd title={title}>{isCode ? <Code>{value}</Code> : <Text>{value}</Text>}</dd>
    </div>
  );
}
