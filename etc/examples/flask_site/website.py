"""Hot Plates, a shop whose customers watch their plates get warm. This module has all pages;
jobscribe's blueprint runs the computations.

    flask --app website add-customer ada    the password is read from stdin
    python website.py                       serve on $PORT (8080)

Settings, all from the environment: SITE_SECRET (signs the session cookie; no default), SITE_DB,
JOBSCRIBE_ROOT.
"""

import os
import sys

import click
import flask
import waitress

import agent
import db
from jobscribe.web.blueprint.blueprint import create_blueprint


def create_app() -> flask.Flask:
    site = flask.Flask(__name__)
    site.secret_key = os.environ["SITE_SECRET"]
    site.config.update(SESSION_COOKIE_SAMESITE="Lax", SESSION_COOKIE_HTTPONLY=True)
    customers = db.Customers(os.environ.get("SITE_DB", "customers.sqlite"))

    # `user` is all that jobscribe needs to know about this site
    jobs = create_blueprint(
        supervisor=os.environ["JOBSCRIBE_ROOT"], user=lambda request: flask.session.get("uid")
    )
    site.register_blueprint(jobs, url_prefix="/jobs")

    @site.before_request
    def from_our_own_pages() -> None:
        """Refuse forms of other sites. jobscribe's routes have their own check; this one protects
        the two forms below.
        """
        if (
            flask.request.method == "POST"
            and flask.request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin"
        ):
            flask.abort(403)

    @site.get("/")
    def page() -> str:
        customer = customers.of(flask.session.get("uid", ""))
        return flask.render_template(
            "plate.html", customer=customer, agent=agent.of(customer.uid) if customer else None
        )

    @site.post("/sign-in")
    def sign_in() -> flask.typing.ResponseReturnValue:
        customer = customers.signed_in(
            flask.request.form.get("name", ""), flask.request.form.get("password", "")
        )
        if customer is None:
            return flask.render_template(
                "plate.html", customer=None, said="That is not the name and password of a customer."
            ), 401
        flask.session.clear()
        flask.session["uid"] = customer.uid
        return flask.redirect("/", 303)

    @site.post("/sign-out")
    def sign_out() -> flask.typing.ResponseReturnValue:
        flask.session.clear()
        return flask.redirect("/", 303)

    @site.cli.command("add-customer")
    @click.argument("name")
    def add_customer(name: str) -> None:
        click.echo(customers.add(name, sys.stdin.readline().rstrip("\n")).uid)

    return site


if __name__ == "__main__":
    server = waitress.create_server(
        create_app(), host="127.0.0.1", port=int(os.environ.get("PORT", "8080")), threads=8
    )
    click.echo(f"Hot Plates at http://127.0.0.1:{server.effective_port}")
    server.run()
