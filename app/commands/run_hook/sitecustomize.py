"""Starts the hook of `logs-ui run` in each Python process below it, and then the sitecustomize that this one hides.

Python imports it by itself, from the folder that `logs-ui run` puts in front of PYTHONPATH. Any Python may read it, of
any release and with other packages: it uses no syntax that an old one does not know, and lets nothing fail.
"""

import os
import sys

_HERE = os.path.dirname(__file__)
try:
    if sys.version_info >= (3, 11):  # noqa: UP036 - see above
        import logs_ui_run_hook  # type: ignore[import-not-found]  # beside this file

        logs_ui_run_hook.start()
except Exception as error:  # noqa: BLE001 - the program must run
    sys.stderr.write("logs-ui: process %d is not recorded: %r\n" % (os.getpid(), error))  # noqa: UP031

# The program sees the path, and the sitecustomize, that it has without `logs-ui run`. Where there is none, this raises
# the ImportError that Python then expects.
sys.path[:] = [entry for entry in sys.path if entry != _HERE]
sys.modules.pop("sitecustomize", None)
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
