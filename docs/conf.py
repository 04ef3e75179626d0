"""The documentation as a site (`make docs`). A broken link is an error."""

project = "torchloom"
copyright = "torchloom authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = "torchloom"
html_copy_source = False
html_show_sphinx = False
myst_heading_anchors = 3
nitpicky = True
suppress_warnings = ["myst.header"]

# Links that are right on a code host, and what they are called on the site.
ON_THE_SITE = {
    "](../CONTRIBUTING.md)": "](contributing.md)",
    "](CONTRIBUTING.md)": "](contributing.md)",
    "](CHANGELOG.md)": "](changelog.md)",
    "](docs/": "](",
    "[examples/incidents](examples/incidents)": "`examples/incidents`",
    "[examples/incidents](../examples/incidents)": "`examples/incidents`",
}


def on_the_site(app, *where):
    content = where[-1]
    for written, shown in ON_THE_SITE.items():
        content[0] = content[0].replace(written, shown)


def setup(app):
    app.connect("source-read", on_the_site)
    app.connect("include-read", on_the_site)
