"""`python -m mocker_replay` is the command `mocker-replay`."""

from mocker_replay.cli.app import main

if __name__ == "__main__":
    main()
