"""Files that people share: a job or an incident as one HTML file that opens offline and needs no script.

Pure: answers of the API in, text out. Everything that comes from a script, a host or a person is escaped.

* `markup`: escaped HTML, the frame of a page, tables.
* `charts`: curves and the picture rank × time, as SVG.
* `incident`: one incident.
* `job`: a whole job.
"""
