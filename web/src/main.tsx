// The page: navigation, and which view is shown.

import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { begin, currentAccess, logOut, watchAccess, type Access } from "./api";
import { navigate, useAddress, useLink, useResource } from "./hooks";
import { startLive } from "./live";
import { ClustersPage } from "./pages/clusters";
import { JobPage } from "./pages/job";
import { JobsPage } from "./pages/jobs";
import { MachinePage } from "./pages/machine";
import { Overview } from "./pages/overview";
import { PeoplePage } from "./pages/people";
import { SubmitPage } from "./pages/submit";
import { SweepPage } from "./pages/sweep";
import { A, Messages, Text } from "./parts/ui";
import type { Me } from "./types";

const VIEWS = [
  { path: "", name: "Overview" },
  { path: "jobs", name: "Jobs" },
  { path: "machine", name: "Machine" },
  { path: "people", name: "Usage" },
  { path: "clusters", name: "Clusters" },
];

function Page() {
  const [access, setAccess] = useState<Access>(currentAccess());
  useEffect(() => watchAccess(setAccess), []);
  if (access === "starting") return null;
  return access === "in" ? <Shell /> : <LoggedOut isBadLink={access === "bad-link"} />;
}

function LoggedOut({ isBadLink }: { isBadLink: boolean }) {
  return (
    <main class="logged-out" id="main">
      <h1>{isBadLink ? "This link is not valid any more" : "You are not logged in"}</h1>
      {isBadLink && <p>A link works once, and for five minutes.</p>}
      <p>On the machine that runs gflow, type this and open the link that it makes:</p>
      <pre>gflow web</pre>
    </main>
  );
}

function Shell() {
  const { path, query } = useAddress();
  const me = useResource<Me>("/me");
  const main = useRef<HTMLElement>(null);
  const before = useRef(path);
  useEffect(startLive, []);
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const isTyping = event.target instanceof Element && event.target.closest("input, textarea, select, dialog");
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      const search = document.querySelector<HTMLInputElement>("main input[type=search]");
      if (event.key === "/" && search) {
        event.preventDefault();
        search.focus();
      } else if (event.key === "n") navigate("submit");
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
  useEffect(() => {
    if (before.current === path) return;
    before.current = path;
    main.current?.focus();
    if (!location.hash) window.scrollTo(0, 0);
  }, [path]);
  return (
    <>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <header class="top">
        <A to="" class="mark">
          gflow
        </A>
        {me.data && (
          <span class="host">
            <Text>{me.data.host}</Text>
          </span>
        )}
        <nav aria-label="views">
          {VIEWS.map((view) => (
            <A to={view.path} aria-current={viewOf(path) === view.path ? "page" : undefined}>
              {view.name}
            </A>
          ))}
        </nav>
        <Connection />
        <A to="submit" class="button primary">
          New job
        </A>
        {me.data && <Account me={me.data} />}
      </header>
      <main id="main" tabIndex={-1} ref={main}>
        <View path={path} query={query} me={me.data} />
      </main>
      <Messages />
    </>
  );
}

const viewOf = (path: string) => (path.startsWith("sweeps") ? "jobs" : (path.split("/")[0] ?? ""));

function View({ path, query, me }: { path: string; query: URLSearchParams; me: Me | null }) {
  const [view, ...rest] = path.split("/");
  const id = decodeURIComponent(rest[0] ?? "");
  const title = { "": "Overview", jobs: id ? `Job ${id}` : "Jobs", submit: "New job", people: "Usage" }[view ?? ""];
  document.title = `${title ?? view} · gflow${me ? ` on ${me.host}` : ""}`;
  switch (view) {
    case "":
      return <Overview me={me} />;
    case "jobs":
      return id ? <JobPage key={id} id={id} me={me} /> : <JobsPage query={query} me={me} />;
    case "sweeps":
      return <SweepPage key={id} id={id} query={query} me={me} />;
    case "submit":
      return <SubmitPage me={me} query={query} />;
    case "machine":
      return <MachinePage me={me} />;
    case "people":
      return <PeoplePage query={query} me={me} />;
    case "clusters":
      return <ClustersPage />;
    default:
      return <h1>There is nothing here</h1>;
  }
}

function Connection() {
  const link = useLink();
  const words = { live: "Live", connecting: "Connecting…", lost: "Reconnecting…" }[link];
  return (
    <span class={`link is-${link}`} role="status">
      {words}
    </span>
  );
}

function Account({ me }: { me: Me }) {
  return (
    <details class="account">
      <summary>
        <Text>{me.user}</Text>
        {me.operator && me.system && <span class="tag">operator</span>}
      </summary>
      <div class="menu">
        <p class="muted">gflow {me.version}</p>
        <p class="muted">
          Keys: <kbd>/</kbd> search, <kbd>n</kbd> new job
        </p>
        <button type="button" onClick={() => void logOut()}>
          Log out
        </button>
      </div>
    </details>
  );
}

void begin();
const place = document.getElementById("app");
if (place) render(<Page />, place);
