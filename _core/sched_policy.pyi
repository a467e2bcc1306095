from typing_extensions import disjoint_base

from .sched_calendar import CalendarScheduler

@disjoint_base
class PolicyScheduler(CalendarScheduler): ...
