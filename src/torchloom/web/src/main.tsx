// The frame around all pages: address, session, what is live, theme.
import { Component, render, type ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import "./style.css";
import type { Identity } from "./api";
import { span } from "./format";
import { asOf, follow, now, paused, standing, unfollow, useCell } from "./live";
import { get, post } from "./net";
import { Home } from "./pages/home";
import { IncidentPage } from "./pages/incident";
import { JobPage } from "./pages/job";
import { LogsPage } from "./pages/logs";
import { SignIn, takeCode } from "./pages/signin";
import { SteerPage } from "./pages/steer";
import { Mark } from "./parts/mark";
import { link, showTheme, theme, usePlace, who, type Place, type Theme } from "./session";

showTheme();

function App() {
  const place = usePlace();
  const me = useCell(who);
  const state = useCell(standing);
  useEffect(() => {
    if (state === "signed-out") who.value = null;
  }, [state]);
  useEffect(() => {
    document.title = [...title(place), "torchloom"].join(" · ");
  }, [place.parts.join("/")]);
  const signedOut = me === null && state === "signed-out";
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), document.getElementById("main")?.focus())}>Skip to content</a>
      <Top place={place} me={me} />
      {me && state === "lost" && <Stale />}
      <main id="main" tabIndex={-1}>
        <Guarded key={place.parts.join("/")}>{signedOut ? <SignIn /> : me ? <Shown place={place} /> : <p class="dim">Connecting…</p>}</Guarded>
      </main>
    </>
  );
}

function Shown({ place }: { place: Place }) {
  const [kind, id = "", part] = place.parts;
  if (kind === undefined) return <Home />;
  if (kind === "job" && part === undefined) return <JobPage id={id} query={place.query} />;
  if (kind === "job" && part === "steer") return <SteerPage id={id} />;
  if (kind === "job" && part === "logs") return <LogsPage id={id} query={place.query} />;
  if (kind === "incident") return <IncidentPage id={id} />;
  return (
    <p>
      There is no such page. <a href="#/">All jobs</a>
    </p>
  );
}

function title({ parts: [kind, id, part] }: Place): string[] {
  return kind === "job" || kind === "incident" ? [part, id].filter((text): text is string => !!text) : [];
}

function Top({ place, me }: { place: Place; me: Identity | null }) {
  const [kind, id, part] = place.parts;
  return (
    <header class="top">
      <a class="home" href="#/">torchloom</a>
      <nav class="crumbs" aria-label="Where you are">
        {(kind === "job" || kind === "incident") && id && (
          <>
            <span aria-hidden="true">/</span>
            <a href={link(kind, id)}>{id}</a>
            {part && <span aria-hidden="true">/</span>}
            {part && <a href={link(kind, id, part)}>{part}</a>}
          </>
        )}
      </nav>
      <div class="right">
        {me && <Standing />}
        {me && <Hold />}
        <ThemeChoice />
        {me && (
          <button type="button" class="quiet extra" title={`Signed in as ${me.name} (${me.role})`} onClick={signOut}>
            {me.name}
            {me.role === "read" ? " (read only)" : ""} · sign out
          </button>
        )}
      </div>
    </header>
  );
}

function Standing() {
  const state = useCell(standing);
  const held = useCell(paused);
  if (held) return <span class="standing"><Mark tone="held" />paused</span>;
  if (state === "live") return <span class="standing"><Mark tone="ok" />live</span>;
  return <span class="standing"><Mark tone="warn" />{state === "lost" ? "not connected" : "connecting"}</span>;
}

function Hold() {
  const held = useCell(paused);
  return (
    <button
      type="button"
      class="quiet extra"
      onClick={() => {
        paused.value = !held;
        if (held) void follow();
      }}
    >
      {held ? "continue updates" : "pause updates"}
    </button>
  );
}

function Stale() {
  const at = useCell(asOf);
  const clock = useCell(now);
  const old = Math.round((clock - at) / 1000);
  return (
    <p class="notice" role="status">
      <Mark tone="warn" /> The control service is not reachable. What you see is {old > 1 ? `${span(old)} old` : "a moment old"}; training is not affected.
    </p>
  );
}

const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

function ThemeChoice() {
  const chosen = useCell(theme);
  return (
    <button type="button" class="quiet extra" title="Light, dark or as the system" onClick={() => (theme.value = NEXT[chosen])}>
      theme: {chosen}
    </button>
  );
}

async function signOut(): Promise<void> {
  await post("/logout").catch(() => {});
  unfollow();
  who.value = null;
  standing.value = "signed-out";
}

/** A mistake in one page must not take the others away. */
class Guarded extends Component<{ children: ComponentChildren }, { failed: string }> {
  override state = { failed: "" };
  override componentDidCatch(error: unknown): void {
    this.setState({ failed: String(error) });
  }
  override render() {
    if (!this.state.failed) return this.props.children;
    return (
      <p class="trouble" role="alert">
        This page failed ({this.state.failed}). <a href="#/">All jobs</a> · <a href="" onClick={() => location.reload()}>load again</a>
      </p>
    );
  }
}

async function begin(): Promise<void> {
  await takeCode();
  try {
    who.value = await get<Identity>("/whoami");
    void follow();
  } catch {
    standing.value = "signed-out";
  }
}

who.follow(() => {
  if (who.value !== null && standing.value !== "live") void follow();
});
render(<App />, document.getElementById("app")!);
void begin();
