"""The agent's part in replica groups: it informs its processes of the groups that take part, and has the
store that they meet through.

`desk` is the agent's side of the Unix socket, `client` a training process's; `roster` decides what the desk
sends. Each line is one JSON object.

A control connection, from the process: `{"join": {"rank": 0, "size": 2, "round": 5}}`, then
`{"at": {"version": 3, "step": 9}}`, `{"broken": 3}`, `{"late": {"version": 3, "groups": [0]}}` and
`{"left_out": 4}`. From the agent, at once and with each change:
`{"membership": {"version": 3, "groups": [[0, 2], [1, 5]], "me": [1, 5]}}`, index and round of each group.

Before it joins, a process may request the same line once, by `{"look": 5}` with its round.

A store connection, which ends as soon as there is a newer version: `{"store": 3}`, then
`{"set": [key, value]}`, answered by `{}`; `{"get": key}`, answered by `{"value": value}` once it is there, or
by null after a minute; `{"add": [key, 1]}`, answered by `{"sum": 1}`; and `{"check": [key]}`, answered by
`{"there": true}`. Values are in base64. If the lead's store cannot be reached, the last answer is
`{"failed": "why"}`.
"""
