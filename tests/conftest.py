"""Set-up for all tests."""

import signal

# A shell starts a background job without job control, such as `make test &` in a script, with SIGINT ignored. Programs
# that the tests start would inherit this, and Ctrl-C would not end them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
