// A job's log: live, with a search of the whole log, and a jump to the first line that looks like an error.

import { useEffect, useRef, useState } from "preact/hooks";
import { number } from "../format";
import type { FoundLine } from "../job_types";
import type { JobId } from "../types";
import { type Content, contentAfter, contentAround, contentBefore, followEnd, type Found, searchLog } from "./log_text";

const LINE = 18;
// Milliseconds after the last key before a search begins.
const TYPED = 250;
const ERRORS =
  /(\btraceback|error|exception|\bfatal|\bpanic(ked)?|out of memory|\boom|segmentation fault|\bkilled|\babort(ed)?|command not found|no such file or directory)\b/i;

interface LogProps {
  id: JobId;
  isRunning: boolean;
  // A line to show, such as the evidence of a cause; a new object shows it again.
  wanted?: { offset: number } | null;
}

export function Log({ id, isRunning, wanted }: LogProps) {
  const log = useLog(id, isRunning);
  const { content, at, box } = log;
  const [first, setFirst] = useState(0);
  const search = useSearch(id, log);
  const lines = content?.lines ?? [];

  useEffect(() => {
    if (wanted) void log.show(wanted.offset).then(() => box.current?.scrollIntoView({ block: "nearest" }));
  }, [wanted]);
  const onScroll = () => {
    const view = box.current;
    if (!view) return;
    setFirst(Math.max(0, Math.floor(view.scrollTop / LINE) - 20));
    if (view.scrollHeight - view.scrollTop - view.clientHeight > 30) log.unfollow();
  };
  if (log.error) return <p class="notice">{log.error}</p>;
  const shown = Math.min(lines.length, first + 90);
  const last = content?.first ? content.first + lines.length : 0;
  const digits = `--digits: ${String(last).length}ch`;
  const hasMore = content !== null && !log.isTail && content.end < content.size;
  return (
    <div class="log">
      <div class="log-tools">
        <input
          type="search"
          placeholder="search the whole log"
          aria-label="search the log"
          value={search.text}
          onInput={(event) => search.type(event.currentTarget.value)}
          onKeyDown={(event) => event.key === "Enter" && search.step(event.shiftKey ? -1 : 1)}
        />
        <span class="muted" role="status">
          {search.status}
        </span>
        {search.count > 0 && (
          <>
            <button type="button" onClick={() => search.step(-1)} aria-label="previous match">
              ↑
            </button>
            <button type="button" onClick={() => search.step(1)} aria-label="next match">
              ↓
            </button>
          </>
        )}
        <button type="button" onClick={search.showError}>
          First error
        </button>
        <button type="button" aria-pressed={log.isFollowing} onClick={log.follow}>
          {content?.final ? "To the end" : "Follow"}
        </button>
      </div>
      <div class="log-view" ref={box} onScroll={onScroll} tabIndex={0} role="log" aria-label={`log of job ${id}`} aria-live="off">
        {content && content.start > 0 && (
          <button type="button" class="quiet log-more" onClick={log.loadBefore}>
            Load earlier lines
          </button>
        )}
        {lines.length === 0 && <p class="muted">{content ? `Nothing was written${content.final ? "" : " yet"}.` : ""}</p>}
        <div style={{ height: `${lines.length * LINE}px` }} class="log-lines">
          <pre style={`transform: translateY(${first * LINE}px); ${digits}`} class={content?.first ? "has-numbers" : ""}>
            {lines.slice(first, shown).map((line, index) => (
              <div class={lineClass(line, first + index === at)} data-line={content?.first ? content.first + first + index : undefined}>
                {mark(line, search.text)}
              </div>
            ))}
          </pre>
        </div>
        {hasMore && (
          <button type="button" class="quiet log-more" onClick={log.loadAfter}>
            Load later lines
          </button>
        )}
      </div>
    </div>
  );
}

/** The loaded part of a log, and moves in it. */
function useLog(id: JobId, isRunning: boolean) {
  const [content, setContent] = useState<Content | null>(null);
  const [error, setError] = useState("");
  const [isFollowing, setFollowing] = useState(true);
  // Whether the loaded part is the end of the log, which grows.
  const [isTail, setTail] = useState(true);
  const [at, setAt] = useState<number | null>(null);
  const box = useRef<HTMLDivElement>(null);
  const stopped = useRef(new AbortController());

  const restart = () => {
    stopped.current.abort();
    return (stopped.current = new AbortController()).signal;
  };
  const loadTail = () => {
    const signal = restart();
    setTail(true);
    followEnd(id, signal, (change) => !signal.aborted && setContent(change)).catch((problem: unknown) => {
      if (!signal.aborted) setError(problem instanceof Error ? problem.message : "the log cannot be read");
    });
  };
  useEffect(() => {
    loadTail();
    return () => stopped.current.abort();
  }, [id, isRunning]);
  useEffect(() => {
    const view = box.current;
    if (view && isFollowing) view.scrollTop = view.scrollHeight;
  }, [content, isFollowing]);

  const scroll = (line: number) => {
    setFollowing(false);
    setAt(line);
    requestAnimationFrame(() => {
      if (box.current) box.current.scrollTop = Math.max(0, (line - 4) * LINE);
    });
  };
  /** Show the line that begins at this byte: scroll to it, or load what is around it. */
  const show = async (offset: number, line?: number) => {
    const index = content?.first && line ? line - content.first : -1;
    if (content && index >= 0 && index < content.lines.length) return scroll(index);
    const signal = restart();
    const found = await contentAround(id, offset, signal).catch(() => null);
    if (!found || signal.aborted) return;
    if (found.content.first === null && line) found.content.first = line - found.at;
    setTail(false);
    setContent(found.content);
    scroll(found.at);
  };
  return {
    content, error, isFollowing, isTail, at, box, show,
    unfollow: () => setFollowing(false),
    follow: () => {
      setAt(null);
      setFollowing(!isFollowing || !isTail);
      if (!isTail) loadTail();
    },
    loadBefore: () => {
      if (!content) return;
      setFollowing(false);
      void contentBefore(id, content).then((more) => {
        setContent((now) => now && { ...now, start: more.start, first: more.first, lines: [...more.lines.slice(0, more.lines.length - content.lines.length), ...now.lines] });
        setAt(null);
      });
    },
    loadAfter: () => content && void contentAfter(id, content).then(setContent),
  };
}

/** The search of the whole log, in which the daemon reads. */
function useSearch(id: JobId, log: ReturnType<typeof useLog>) {
  const [text, setText] = useState("");
  const [found, setFound] = useState<Found | null>(null);
  const [at, setAt] = useState(-1);
  const [note, setNote] = useState("");
  const timer = useRef<ReturnType<typeof setTimeout>>();
  const stopped = useRef(new AbortController());
  const latest = useRef<FoundLine[]>([]);

  const find = async (wanted: string) => {
    stopped.current.abort();
    const own = (stopped.current = new AbortController());
    latest.current = [];
    setAt(-1);
    setFound(null);
    setNote("");
    if (!wanted) return;
    try {
      for await (const some of searchLog(id, wanted, Infinity, own.signal)) {
        latest.current = some.lines;
        if (!own.signal.aborted) setFound(some);
      }
    } catch {
      if (!own.signal.aborted) setNote("the search failed");
    }
  };
  useEffect(() => {
    void find(text.trim());
    return () => {
      stopped.current.abort();
      clearTimeout(timer.current);
    };
  }, [id]);
  const type = (now: string) => {
    setText(now);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => void find(now.trim()), TYPED);
  };
  const step = (by: number) => {
    const lines = latest.current;
    if (!lines.length) return;
    const next = (at + by + lines.length + (at < 0 && by < 0 ? 1 : 0)) % lines.length;
    setAt(next);
    const line = lines[next];
    if (line) void log.show(line.offset, line.line);
  };
  const showError = async () => {
    setNote("");
    for await (const some of searchLog(id, "", 1, new AbortController().signal)) {
      const line = some.lines[0];
      if (line) return void log.show(line.offset, line.line);
    }
    setNote("no line looks like an error");
  };
  return { text, type, step, count: found?.lines.length ?? 0, status: note || statusOf(found, at), showError: () => void showError() };
}

function statusOf(found: Found | null, at: number): string {
  if (!found) return "";
  const so = found.isOver ? "" : ` (${Math.round(found.part * 100)} % searched)`;
  if (!found.lines.length) return found.isOver ? "no match" : so;
  const more = found.isOver && found.part < 1 ? "+" : "";
  return `${number(at + 1)} of ${number(found.lines.length)}${more}${so}`;
}

function lineClass(line: string, isChosen: boolean): string {
  return `${isChosen ? "is-chosen" : ""} ${ERRORS.test(line) ? "is-error" : ""}`;
}

function mark(line: string, search: string) {
  const wanted = search.trim().toLowerCase();
  const at = wanted ? line.toLowerCase().indexOf(wanted) : -1;
  if (at < 0) return line || " ";
  return (
    <>
      {line.slice(0, at)}
      <mark>{line.slice(at, at + wanted.length)}</mark>
      {line.slice(at + wanted.length)}
    </>
  );
}
