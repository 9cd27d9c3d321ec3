#!python
# Not an entry point: the script that pip makes for one imports `re` first, and Ctrl-C meanwhile is a traceback.
import _signal

if __name__ == "__main__":  # and not where multiprocessing imports this for a process of `--run-path`
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from dlr.commands.queue.command import main

    main()
