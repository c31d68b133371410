/** The pages: which component shows which address. */

import "./style.css";
import "./parts.css";
import "./apps.css";
import "./submit.css";
import "./account.css";
import "./reading.css";
import "./site.css";
import { render } from "preact";
import { LocationProvider, Route, Router } from "preact-iso";
import { followMe } from "./me.ts";
import { SCOPE } from "./navigation.ts";
import { JobsPage } from "./pages/jobs.tsx";
import { Frame } from "./parts/frame.tsx";
import { late } from "./parts/late.tsx";
import { Empty, SignedOut } from "./parts/messages.tsx";
import { path, site } from "./site.ts";

const AppsPage = late(() => import("./pages/apps.tsx").then((m) => m.AppsPage));
const SimulationPage = late(() => import("./pages/simulation.tsx").then((m) => m.SimulationPage));
const AccountPage = late(() => import("./pages/account.tsx").then((m) => m.AccountPage));
const DocsPage = late(() => import("./pages/docs.tsx").then((m) => m.DocsPage));
const ReferencePage = late(() => import("./pages/reference.tsx").then((m) => m.ReferencePage));
const JobPage = late(() => import("./pages/job.tsx").then((m) => m.JobPage));
const QueuesPage = late(() => import("./pages/queues.tsx").then((m) => m.QueuesPage));
const OperationsPage = late(() => import("./pages/operations.tsx").then((m) => m.OperationsPage));
const SubmitPage = late(() => import("./pages/submit.tsx").then((m) => m.SubmitPage));

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
        <Route path={path("/apps")} component={AppsPage} />
        <Route path={path("/apps/:type/:sid")} component={SimulationPage} />
        <Route path={path("/submit")} component={SubmitPage} />
        <Route path={path("/account")} component={AccountPage} />
        <Route path={path("/docs/:page?")} component={DocsPage} />
        <Route path={path("/reference/:api?")} component={ReferencePage} />
        <Route path={path("/queues")} component={QueuesPage} />
        <Route path={path("/operations")} component={OperationsPage} />
        <Route default component={NotFound} />
      </Router>
    </LocationProvider>
  );
}

const root = document.getElementById("app");
// the document says that it is still loading
root?.replaceChildren();
if (root) render(<App />, root);
if (site.user) void followMe();
