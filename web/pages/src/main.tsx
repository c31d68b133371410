/** The pages: which component shows which address. */

import "./style.css";
import "./parts.css";
import "./site.css";
import { render } from "preact";
import { LocationProvider, lazy, Route, Router } from "preact-iso";
import { followMe } from "./me.ts";
import { SCOPE } from "./navigation.ts";
import { JobsPage } from "./pages/jobs.tsx";
import { Frame } from "./parts/frame.tsx";
import { Empty, SignedOut } from "./parts/messages.tsx";
import { path, site } from "./site.ts";

const JobPage = lazy(() => import("./pages/job.tsx").then((m) => m.JobPage));
const QueuesPage = lazy(() => import("./pages/queues.tsx").then((m) => m.QueuesPage));
const OperationsPage = lazy(() => import("./pages/operations.tsx").then((m) => m.OperationsPage));

function NotFound() {
  return (
    <Frame title="Not found">
      <Empty title="There is no such page.">
        <p>
          <a href={path("/jobs")}>All jobs</a>
        </p>
      </Empty>
    </Frame>
  );
}

function App() {
  if (!site.user) {
    return (
      <Frame title="Sign in">
        <SignedOut />
      </Frame>
    );
  }
  return (
    <LocationProvider scope={SCOPE}>
      <Router>
        <Route path={path("/jobs")} component={JobsPage} />
        <Route path={path("/jobs/:jid")} component={JobPage} />
        <Route path={path("/queues")} component={QueuesPage} />
        <Route path={path("/operations")} component={OperationsPage} />
        <Route default component={NotFound} />
      </Router>
    </LocationProvider>
  );
}

const root = document.getElementById("app");
if (root) render(<App />, root);
if (site.user) void followMe();
