"""What the verbs use of the daemon, as `verb.daemon`: loaded when the daemon makes its routes, never by cleanerctl."""

from dataclasses import asdict as asdict

from cleanerd.cleaning.delete_records import *
from cleanerd.daemon.api.control import *
from cleanerd.daemon.api.parameters import *
from cleanerd.daemon.configuration.reload import *
from cleanerd.daemon.reports.views import *
from cleanerd.daemon.store import *
from cleanerd.daemon.values.log_id import *
from cleanerd.daemon.values.models import *
from cleanerd.daemon.work.holds import *
from cleanerd.daemon.work.mutes import *
from cleanerd.daemon.work.states import *
from cleanerd.policy.lifecycle import *
from cleanerd.storage.log_dir import Owner as Owner
