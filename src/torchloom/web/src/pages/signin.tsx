// Signing in: by a one-time code from the address, which is removed at once, or by a token that is typed.
import { useState } from "preact/hooks";
import { Cell, standing, useCell } from "../live";
import { login, Refused } from "../net";
import { Trouble } from "../parts/bits";
import { who } from "../session";

const refused = new Cell<Refused | null>(null);

/** Exchange the code of `#/sign-in/CODE[/job/X]`; the address has no code any more before it is sent. */
export async function takeCode(): Promise<void> {
  const found = /^#\/sign-in\/([\w-]+)(.*)$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", `#${found[2] || "/"}`);
  dispatchEvent(new HashChangeEvent("hashchange"));
  try {
    await login({ code: found[1]! });
  } catch (error) {
    refused.value = error as Refused;
  }
}
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#/sign-in/")) void takeCode().then(() => location.reload());
});

export function SignIn() {
  const [token, setToken] = useState("");
  const error = useCell(refused);
  return (
    <div class="signin">
      <h1>Sign in</h1>
      <p>
        Run <code>loom open</code> where torchloom runs and follow the link it prints. It works once.
      </p>
      <form
        onSubmit={async (event) => {
          event.preventDefault();
          try {
            who.value = await login({ token: token.trim() });
            refused.value = null;
            standing.value = "connecting";
          } catch (failed) {
            refused.value = failed as Refused;
          }
        }}
      >
        <input type="password" name="token" autocomplete="off" aria-label="Token" placeholder="or paste a token" value={token} onInput={(e) => setToken(e.currentTarget.value)} />
        <button type="submit" class="primary" disabled={!token.trim()}>Sign in</button>
      </form>
      <Trouble error={error} />
    </div>
  );
}
