"""The agent's part in replica groups: its processes learn from it who takes part, and meet through its store.

`desk` is the agent's side of the Unix socket, `client` that of a training process. A line is a JSON object.

A control connection, from the process: `{"join": {"rank": 0, "size": 2}}`, and then
`{"at": {"version": 3, "step": 9}}` and `{"broken": 3}`. From the agent, at once and with each change:
`{"membership": {"version": 3, "groups": [[0, 2], [1, 5]], "me": [1, 5]}}`, index and round of each group.

A store connection, which ends as soon as there is a newer version: `{"store": 3}`, and then
`{"set": [key, value]}`, answered by `{}`, and `{"get": key}`, answered by `{"value": value}`, in base64.
"""
