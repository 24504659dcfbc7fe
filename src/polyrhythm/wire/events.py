"""The event types of frames. The first eight come from the dSyncPS paper (Table 1) and have its
names; all others are polyrhythm's own."""

from enum import IntEnum


class EventType(IntEnum):
    SRV_BONJOUR = 1
    ALIVE = 2
    TRAINMF = 3
    BONJOUR_MDES = 4
    SRV_SYNC = 5
    WRK_BONJOUR = 6
    WRK_REQ_SRVS = 7
    WRK_UPDATE = 8
    # the link
    GREETING = 16
    REFUSED = 17
    SEGMENT = 18
    SEGMENT_WITHDRAWN = 19
    CHALLENGE = 20
    PROOF = 21
    # messages about joining and leaving
    ADMITTED = 32
    ATTACH = 33
    ROUTING = 34
    ENROL = 35
    LEASED = 36
    REPORT = 37
    LEAVE = 38
    STOP = 39
    EVICTED = 40
    APPOINTED = 41
    DELIVERED = 42
    CHUNK_PART = 43
    MODEL_SIZE = 44
    DIVIDED = 45
    # messages about one contribution, from its push to the pull of the version that contains it
    TRAILER = 48
    ABSTAINED = 49
    ARRIVED = 50
    FOLD = 51
    FOLDED = 52
    RELEASE = 53
    ACKNOWLEDGED = 54
    PULL = 55
    PARAMETERS = 56
    PULLED = 57
    PAUSE = 58
    ASKING = 59
    PROGRESSED = 60
    # messages between the lead and the servers
    PLACE = 64
    PLACED = 65
    SEEDED = 66
    CAUGHT_UP = 67
    UNREACHABLE = 68
    INTRODUCED = 69
    DISMISSED = 70
    DRAIN = 71
    RATES_MEASURED = 72
    STAYS = 73
    # messages between a primary and its replicas
    COPY = 80
    COPIED = 81
    FETCH = 82
    STATE = 83
    ADOPTED = 84
    # messages about parameters that only workers have (`--optimizer-on workers`)
    SHARE = 88
    SHARED = 89
    GIVEN = 90
    HOLDING = 91
    # messages between an operator and the lead
    OPERATOR_HELLO = 96
    OPERATOR_REQUEST = 97
    OPERATOR_ANSWER = 98
    # messages about saving the model
    COLLECT = 104
    COLLECTED = 105
    CAPTURE = 106
    # checkpoints
    CUT = 112
    CUT_TAKEN = 113
    CUT_WRITTEN = 114
    WITHHOLD = 115
    WITHHELD = 116
    PROCEED = 117
    KEEPING = 118
    KEEP = 119
    KEPT = 120
    RESTORED = 121
