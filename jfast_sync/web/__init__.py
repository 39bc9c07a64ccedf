"""The HTTP side: readiness and depths, the request's context and session, for Flask and for any WSGI app.

``extension`` wires a Flask app; ``wsgi`` wraps any other; ``probe`` serves readiness where there is no web server.
What is answered is made by pure functions (``readiness``, ``problems``, ``arrival``); only this room imports Flask.
"""
