"""What the router reads and writes in heads and bodies.

Read in this order: `header_policy` (fields in and out), `cors` (access by web pages), `static_answers`
(answers without a pod), `arrived_head` (decisions shared by all requests with one head), `request_body` and
`response_body` (streams).
"""
