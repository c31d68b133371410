/** The page of the account: tokens, usage, disk, sign-ins and clusters of the user. */

import type { JSX } from "preact";
import { Clusters } from "../account/clusters.tsx";
import { Disk } from "../account/disk.tsx";
import { SignIns } from "../account/sign_ins.tsx";
import { Tokens } from "../account/tokens.tsx";
import { Usage, useUsage } from "../account/usage.tsx";
import { isActive, type Status } from "../jobs.ts";
import { useLive } from "../live.ts";
import { me } from "../me.ts";
import { Frame } from "../parts/frame.tsx";
import { site } from "../site.ts";

const ROLES = {
  user: "",
  groupAdmin: "administrator of a group",
  admin: "administrator",
  secretHolder: "administrator",
};

export function AccountPage(): JSX.Element {
  const usage = useUsage();
  const reload = (): void => {
    usage.days.reload();
    usage.months.reload();
  };
  useLive(
    "",
    (name, event) => {
      if (name === "status" && !isActive((event as Status).state)) reload();
    },
    // a site without a stream: what is shown changes rarely
    () => {},
    reload,
  );
  const role = ROLES[me.value.role];
  return (
    <Frame title="Account">
      <div class="page-head">
        <h1>Account</h1>
        <span class="soft">
          user <span class="mono">{site.user}</span>
          {role && `, ${role}`}
        </span>
      </div>
      <div class="account">
        <div>
          <Tokens />
          <Usage {...usage} />
        </div>
        <div>
          <Disk />
          <SignIns />
          <Clusters />
        </div>
      </div>
    </Frame>
  );
}
