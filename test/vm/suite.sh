#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Inside the VM: runs the compiled tests of each package in /payload/packages, in a
# copy of that package's folder. The marks are read by `testtable guest`.
export AGENTRUN_BIN=/payload/bin/agentrun AGENTRUN_PROBE=/payload/bin/probe AGENTRUN_TEST_OUTSIDE=/payload/outside AGENTRUN_TEST_CLOCK=1
# Of the way out only what depends on the kernel: how it is asked and what it answers is the same on each, was tried on the
# host, and takes minutes under emulation.
same=(TestM8AddressesAreRefused TestM8NamesMustAgree TestM8LookupsStayInside TestM8FloodLeavesABoundedAudit TestM8Rebinding
	TestM9RemotePDP TestM10PolicyIsReloaded TestM11Approval TestM12HostileUpstreams TestM13MalformedRequests TestM15ConfidentialMode
	TestM17ModelUpstream TestM19CapStopsAStream TestM20Telemetry TestM14MemoryLivesOn TestM11EmbeddingsOfAProvider
	TestM12CodeExecutor TestM11ApprovalIsForOneCall TestM14OperatorsRunKeepsNothing TestM7ForbiddenRoutes TestM12Upstreams TestM9PolicyFile
	TestM9IdentityIsNotClaimed TestM8UnmodifiedClients TestM7ClientsInRing3 TestM8Interception TestM18LogsOfRuns
	TestM8SecondHelloFromInside TestM12BrokenEscapesFromInside TestM20MetricsAreNoPage TestM8WebsocketsFromInside TestM8NoDatagramsOut)
# And of the command line, which says the same on every kernel.
same+=(TestCommandNames TestBadFlags TestExitCodes TestH25ManyWriters TestRandomFilters TestPrograms TestM8GitFromAnotherNamespace
	TestH30SessionWorkspaces TestM11RunEndsWhileItWaits TestH9ExecAsksTheEnforcer TestH32StrongSessionRuns TestSignals TestRunFolderOnFullDisk
	TestM5NoGatewayWithoutNeed TestGoProgram TestHostileRoot TestPoolSuits TestM1RootlessRefusesByName TestM1RootlessBestEffort
	TestRiskyFilesAreTold TestOverlayRefusals TestHostRefuses TestHostList TestHostByTheModelDoor)
# Many of a thing that is tried here in few, or a race that emulation makes too slow to be one.
same+=(TestFlood TestRootSwappedWhileMounting TestStrictHasNoLinkerToRun TestM8Ring3HasNoEgress TestM18RefusalsFillNoDisk TestH16WhatLeadsNowhereIsPaced TestM8SecondHelloFromInside TestM20ScrapersLeaveTheWayOut TestM7RefusalsOverMCPArePaced)
# And of live control what the command line and the daemon say; what reaches the processes is tried here too.
same+=(TestH13RefusalsByTheCLI TestM23NoControlFromInside TestM22LifeOfAnElevationByTheCLI TestM9PolicyDecidesAboutElevation TestM23VerbsOnADetachedRun
	TestH21ConfiguredHooks TestM23Soak TestServeEqualsAlone TestM6FailedEvent TestServeQueue TestH31ALiveRunFollowsItsAgent TestH31HeldCallsEndInRing3)
# And of launches that hang or fail what is the same in each kernel; that nobody outlives a supervisor, and that a frozen launch ends, is
# tried here too.
same+=(TestFaults TestFaultPointsAreComplete TestM5DaemonKilledInEachStep TestM5LaunchObeysSignals TestM5StepHasADeadline TestM5AbandonedLaunchUndoesItself
	TestM5HostileRootDoesNotHang)
# And of the safety loop what is protocol, words and state. That a stop freezes and a code thaws, and whose memory may be read, is tried
# here too, by the shortest test of each; its kill is the kill switch's, which is.
same+=(TestS1TypeScriptClientDrivesTheLoop TestS1Inspector TestS12HostileClient TestS1StrangersLeaveRoom TestS1OneTokenLeavesRoom TestS10CodesLeaveNoTrace TestS10SandboxLeavesNoTrace
	TestS15StopAndVerification TestS15KilledAndStillStopped TestS15RootlessStopKills)
# And of runs, sagas and the audit what is words and files.
same+=(TestH26RecordWithoutItsCheckpoint TestH20EditedJournal TestH20StepRewritesItsSaga TestH19HostileAnswer TestH19QuarantineKeepsNoUndoAway TestH20StepDiesBesideADaemon TestS7CarriedCommandsPause TestS7VariablesStaySmall TestM19WhatIsOverCountsForTheDay TestM19HangingUpIsPaidFor TestM19UnreadableReplyIsPaidFor
	TestM8TransparentRequestsInDisguise TestM19UncountedStreamIsPaidFor TestH7OneAgentLeavesRoom TestS12ApprovalIsForItsLines TestM12SecretsInDescriptionsOfTools TestM19LeavingAToolIsPaidFor TestS15TargetIsNotMadeUp TestM12GuessesAtTheKeyAreToldAlike TestM12EchoedGuessesAreToldAlike)
same+=(TestH20SagaEscalates TestH20SagaResumes TestH25ChainSurvivesTheSupervisor TestH26CutLogIsFound TestProfiles TestStdin TestImplicitWorkspace TestDetach
	TestM7UnixSocket TestOtherPortsAreNobodys TestCanonicalIsEvalSymlinks TestTerminalByDaemon TestExamples TestTutorial TestM1RootlessConfiguration
	TestThreatSecondLooksGatewayFileReplaced TestGatewayCheckIsKept)
# And of tools' runs what a tool's five seconds, or a window of some seconds, leave no time for here; TestWithin and the breaches of a run by itself are tried.
same+=(TestH24AChildsBreachIsItsParents TestM3ChildrenLiveInTheirParent TestM23FreezeReachesChildren TestH15ChildFollowsItsParentsRing)
# And of keys, policies, metrics, records and the API, which say the same on every kernel.
same+=(TestM9EveryStartIsAsked TestM9MachineFilesHold TestM9ChildrenSagasAndDaemonAreAsked TestM9KeyStaysOutside TestM9KeysDecideAboutStarts
	TestM9KeyOfALiveRun TestM20NodeMetrics TestM20NodeMetricsOfCalls TestM20NodeMetricsStayOnThisHost TestM23StartByAPI TestM23OnlyOwnersStart TestM23ClientFromTheDocument
	TestM18NothingSpokenIsKept TestM18RunLogSaysTheRing TestM19CapEndsTheRun TestH8RiskOfARealCall TestH16RunsShareABucket TestH24RunsShareAWindow
	TestH19StepTimeoutReachesTheRun TestH27History TestH27RecordsOfCalls TestH27RecordsOfDecisions TestH28CallOfAKilledSupervisor
	TestH7UndoOfACall TestH7UndoByAPI TestH7UndoAfterKills TestH7KillUndoesTheCalls TestH7LeavingKeepsNoUndoAway TestH24AttacksAreHeld
	TestH32ContextFromInside TestS2ExecuteInsideIsConfirmed TestS10CodesOfSandboxesReachOperators
	TestM3RangesAreTheOperatorsWord TestM3TimeIsALease TestM16TransparentDialects TestM16FilesPassUnchanged TestM3ModelCallsOfARun)
# And of the lite tools, presets and git. That the kernel holds paths to a folder is tried here too, by package beneath.
same+=(TestM11FileToolOfASession TestM11SearchLite TestM11BrowserLite TestM8PresetsReadARegistry TestM12GitTokenOfARepository)
# And of closing lines, accounts and mistakes, which are words and files.
same+=(TestMistakesNameTheNextStep TestRing2WithoutWorkspaceWarns TestM23EndedRunsAreFound TestM23LostRunsAreTold TestM8RefusedConnectionsAreTold
	TestM6ClosingSummaryOnATerminal)
# And of what programs meet in a sandbox what is protocol and words.
same+=(TestM7GatewayByTheProxy TestTerminalIsLeftAsItWas TestProgramsThatAskForFacts TestGitIndexOfTheHostIsGood TestBrowserRenders)
# And of files that the host runs later what is names and programs; that they can't be written is tried here too, by those of mounts.
same+=(TestPlantedFiles TestGuardedWorkspaceWorks TestMistakesAreToldByTheirLines TestGatewayMistakesAreToldByTheirLines)
# And of what takes half a minute or more here what the supervisor and the gateway do by themselves.
same+=(TestH24EverydayProgramsAreFree TestClosedConnectionsAreBounded TestM19GatewayStaysSmall TestRecordLocks TestHost TestM5FewDescriptors TestM6GatewayKilled
	TestSupervisorDoesNotGrow TestOutputsDontFollowTheAgent TestHomeOfAnOrdinaryUser TestM18CallOfAKilledGatewayIsOnRecord
	TestM5RootlessSupervisorKilledInEachStep TestM23HostileFiles TestM23KeptWrongInput TestM23KeptQuota TestM23LongLinksInAList
	TestCurrentFolderSwapped TestM23FolderOfAKeptSandboxSwapped TestM23NamedFoldersOfAKeptSandboxSwapped TestHostFolderSwappedWhileAsked TestM23KilledStaysDeadAfterACrash TestHostRunsNoNodeOfTheWorkspace)
# And of published ports what is protocol.
same+=(TestM23PortsOfALiveRun TestM23PortsShareNoCookies TestM23HostileServer TestM23StrangersLeaveRoom TestM23OwnPortsStay TestM23BrowserLooksAtAServer TestM23BrowserWorksWithServers)
# And of pauses what the supervisor decides; that processes stand still and give memory back is tried here too. And of roots and undos
# what is names, shapes and protocol.
same+=(TestM3IdleRunsArePaused TestM23PauseIsTheWeakest TestHostileRootShapes TestH19HostileUndo)
# And of snapshots and of the API of kept sandboxes what is words, counts and protocol.
same+=(TestM23KeptByAPI TestM23KeptWrongInputByAPI TestM23OnlyOwnersMakeKept TestM23KeptSurvivesTheDaemonsDeath TestM23KeptRestarts
	TestM23SnapshotWrongInput TestM23LayersAreBounded TestM23ADayInASandbox TestM23ManyKeptSandboxes TestThreatPrivilegeImagesByOthers TestM23ImagesByAPI)
# And of images and of what is kept of a workspace what is names, layers and signatures; that the images' program is confined, and what
# overlays of this kernel do with a committed sandbox, a workspace and a snapshot, is tried here too.
same+=(TestM2ImageNoBase TestThreatTakeoverHostileImages TestThreatTakeoverUnsignedImages TestThreatTakeoverLayersAboveABase
	TestThreatTakeoverHostileConfiguration TestM23WatchIsBounded TestM2ImageRootless TestM2ImageUser TestOwnFoldersByAnyPath
	TestM23WorkspaceInSnapshots TestM23ConflictsOverSeveralStarts TestM23HostileWorkspaceLayer TestM23LongPathsInAWorkspaceLayer
	TestM23RemovalHoldsUpNobody TestM23DeepKeptRootGetsOtherIDs TestM23WatchRests TestM23WatchOfLongPaths TestSetIDLookKeepsFewPaths)
# And of calls that are let run what the supervisor does to pace them.
same+=(TestAskedCallsArePaced)
# And of a command that enters what the supervisor decides about its children.
same+=(TestJoinLeavesTheSupervisorNoChild)
# And of the host's audit log, which no kernel here but the host's has Landlock write to.
same+=(TestLandlockDomainsOfTheAgentAreNotLogged)
# And of an elevation what the supervisor sees that a run has open, of repositories that a file names, and of what is told.
same+=(TestElevationMeetsWhatIsOpen TestRiskyFilesAreNotHidden TestPlantedInASeparateRepository TestWorkspaceBecomesNoRepository)
# And of what a shell asks the command line.
same+=(TestCompletionStartsNothing)
# And of a commit's layout what is names and folders.
same+=(TestThreatTakeoverFailedCommit)
# And of a second freeze what the supervisor answers.
same+=(TestM23SecondFreezeThatFails)
# And of a supervisor without descriptors what it tries again.
same+=(TestM3FrozenRunOfASupervisorWithoutDescriptors)
# And of plans what is words and files.
same+=(TestM19PlansOfOthers TestProfilesOfOthers)
# And of a pull what its programs are started with.
same+=(TestThreatLaterCredentialHelper)
# And of kept sandboxes that come back what the daemon knows of them.
same+=(TestM23KilledStaysDeadOnAFullDisk TestM23StopOnAFullDisk TestM23EndedForWhatItDidStaysDeadAfterACrash)
# And of their removal what is files and records.
same+=(TestM23RemovedOnAFullDisk TestM23GCPutsRemovalsOnRecord TestM23KillAllEndsTheWaitForAnother)
# And of an engine's network, by a configuration that isn't the machine's, and of names.
same+=(TestOCINetwork TestOCINamesAreOwn TestOCIVariablesStayHidden TestOCIFolderOfOthers)
# And of what a provider says it used what is numbers.
same+=(TestM19CountsInOtherPlaces)
# And of the gateway's memory what is Go's.
same+=(TestM12LongRepliesAtOnce)
# And of a caller what signals it was started with.
same+=(TestIgnoredSignals)
# And of a caller what signals it was started with, and of an engine's command those that it gets.
same+=(TestIgnoredSignals TestOCISignalsOfTheCommand)
# And of a gateway what it has open.
same+=(TestGatewayHasNothingOfTheCallers)
# And that an elevation takes its turn: the state's locks.
same+=(TestH32ElevationTakesItsTurn)
# And of the operator's own plan what is words and files.
same+=(TestM19TheOperatorsOwnPlan)
# And of the API what is the daemon's configuration.
same+=(TestM9APIStartsByTheConfigurationOfNow)
# And of who asked what the audit has.
same+=(TestM23WhoAskedIsOnRecord)
# And of undos that are refused what the node's state decides.
same+=(TestH19RefusedUndoIsNotUsedUp TestH19StepWithinItsPlan TestH21KilledStepIsNotTriedAgain)
# And what a key's end cuts, which signals a container hears that isn't started, and what a kill means that waits: the supervisor's and
# agentrun-oci's alone.
same+=(TestM9KeyThatEndsCutsPorts TestOCISignalsBeforeTheStart TestM23KillEndsWhatWaitsForRoom)
# And of what a daemon's callers find behind their runs.
same+=(TestServeTellsChanges TestServeLeavesNoPlaceholders TestH32ServeRunsOneAfterAnother)
# And of images what locks decide.
same+=(TestM2ImageOfASandboxInTheMaking)
# A bundle's read-only root: one field of a container's configuration.
same+=(TestOCIReadOnlyRoot)
# The namespaces of the process that an engine knows.
same+=(TestOCINamespacesOfOthers)
# And of arguments that are empty what the command line makes of them.
same+=(TestOverlayOfNoRunInParticular TestEmptyFlagsOfVerbs)
# And of arguments that are empty, or twice, what the command line makes of them.
same+=(TestOverlayOfNoRunInParticular TestEmptyFlagsOfVerbs TestFlagsGivenTwice TestChainAmongTheArguments)
# And of a full disk what the caller's stdout answers.
same+=(TestOutputThatIsLost TestVerbsSayWhatIsLost)
# And of a sandbox that was frozen what its folder says.
same+=(TestM23FrozenHasNoOtherRun)
# And of a power cut what ext4 has on its disk.
same+=(TestH7UndoOutlastsAPowerCut TestOverlayOutlastsAPowerCut TestCountersOutlastAPowerCut)
# And of a full disk how much of it is the state's.
same+=(TestH31QuarantineOnAFullDisk)
# And of a CA in a supplied root what is names and files.
same+=(TestM8InterceptionInASuppliedRoot)
# And of a CA and of the agent's name in a supplied root what is names and files.
same+=(TestM8InterceptionInASuppliedRoot TestSuppliedRootKnowsTheAgent)
# And of git what its environment tells it.
same+=(TestGitReadsWhatOthersOwn)
# And of a copy's place on the host what links it has.
same+=(TestThreatTakeoverLinkOnTheWayOfACopy TestThreatTakeoverCopyBesideASilentSupervisor)
# And of a copy that a lower ring ends who hangs up.
same+=(TestM22CopyEndsWithTheRing)
# And of a copy beside a snapshot which of the two waits.
same+=(TestM23SnapshotBesideACopy)
# What CI has no time for: on the other kernel it rests on what other tests here try, and `make test-vm`, which has the time, tries it too.
# Whoever names tests gets those.
rest=(TestH21HostileHandlers TestH21KillByTheCLI TestH26YoungRecordIsSound TestH28StartIsOnDisk TestH32FilesOfASession
	TestHomeIsOneRunsAtATime TestHostOnATerminal TestJoinBringsNothing TestJoinFailsAlone TestJoinIsOnRecord TestJoinOfTheDaemon
	TestJoinRefuses TestJoinTerminal TestKeepIsBoundedByTheScratch TestM23ApplyHasTheSandbox TestM23CopyFollowsTheRing
	TestM23FilesOfALiveRun TestM23FilesOfAnOrdinaryUser TestM23KeptComesBackWithTheDaemon TestM23KeptRootless
	TestM23KeptSurvivesItsSupervisor TestM23ManyAtOnce TestM23PortsAreBounded TestM23PortsAreCut TestM23PortsEndAPause
	TestM23ProcessesOfARun TestM23SnapshotForkRollback TestM23WatchOfALiveRun TestM23WorkspaceCountsForTheQuota
	TestM23WorkspaceOutlivesItsRun TestM2CommitASandbox TestM2CommitRefuses TestM2ImageAsBuilt TestM2ImageBaseMeanwhile
	TestM2ImageConcurrentPulls TestM2ImageCredentials TestM2ImageImport TestM2ImageKilledPull TestM2ImageLayersOnce TestM2ImageOfTheDaemon
	TestM2ImagePlatform TestM2ImagePullMissing TestM2ImageRemoval TestM2ImageRunsSharePages TestM2ImageShow TestM3EndedRunsSayWhatHelps
	TestM3LessIsAlwaysAllowed TestM4SignalsDontInterruptForks TestM5ContainerStepIsUnstuck TestM5RootlessContainerStepIsUnstuck
	TestM5StalledCopyHoldsNoRun TestM7StrictHasToolsByDescriptor TestM8TheKeyOfTheCAIsInMemoryOnly TestOCIEnds TestOCIHoldsAPod
	TestOCIHooks TestOCINamesThatCannotBeRead TestOCIPodAfterAKill TestOCIProcess TestOCISeccompOfFurtherCommands TestOCISeccompRefused
	TestOCISharedNetwork TestOCITerminal TestOCIWords TestPlaceholdersAreNotInTheWay TestPlaceholdersAreShared TestPlanIsDeterministic
	TestPlanStartsNothing TestPoolGuardsTheWorkspace TestRequestMistakesAreToldByTheirPaths TestS15StopInTheDaemon
	TestServeClosedDescriptors TestServeCrowd TestServeDeclinesAnotherView TestServeDrains TestServePathsOfTheCaller TestServeSaidAgain
	TestThreatTakeoverFolderOfACopy TestThreatTakeoverImageShow TestThreatTakeoverSignedAboveUnsigned TestTimeout TestUserProfile)
# And of what several tests try here, the long ones of which a shorter one stays: that kills of supervisors, launches, joins, pauses,
# commits and images leave nothing, that hostile trees and pipes stop nobody, and that programs of others find no way out.
rest+=(TestCrowd TestFailedLaunchLeavesNothing TestH21KillReachesChildren TestJoinEnds TestJoinRootless TestJoinTerminalHeldByTheAgent
	TestM22PausedRunKeepsNothing TestM22WhatExpiryTakes TestM23DeepTreesGo TestM23HostileKeptRoot TestM23HostileLayers
	TestM23PipesForFoldersWhileListed TestM23SnapshotAfterACrash TestM23SnapshotOfALiveSandbox TestM2ImagePulledAndRun TestM2StagedViews
	TestM5SupervisorKilledInEachStep TestOCIRefusesWhatNoRingGives TestOCISeccomp TestOutsideTools TestOverlayBoundsSecondNames
	TestOverlayTellsWhatGitRuns TestSequence TestSetIDFilesAreNotRewritten TestSuppliedRoot TestThreatSurvivePipesForFolders
	TestThreatTakeoverFilesInAWorkspace TestThreatTakeoverHostileCommit TestThreatTakeoverLayoutOfACommit TestM23KeptRootGetsOtherIDs)
# And of terminals, words, accounts and ways out, which ask no more of this kernel than what is tried here anyway.
rest+=(TestAllMistakesAreReported TestArguments TestFactsAreTheRuns TestH11ElevationToRing1IsWhole TestH11Ring1ReachesEveryPort
	TestH11TableHoldsLive TestH24MediumIsTold TestH7RootlessUndo TestJobControl TestLinksInWorkspaceStayInside TestM11FileToolRootless
	TestM1RootlessAccounts TestM3TerminalIsWarned TestNoCommand TestPlanMistakesAreToldByTheirLines TestReaderGoesAway TestStdinNotRead
	TestStreamsAreApart TestTerminalHangsUp TestTerminalKeys TestTerminalSizeFollows TestTerminalThatFailsByDaemon
	TestTerminalWithoutCaller TestVersionAndHelp TestWorkspaceOwnership)
# And of what takes twenty seconds and more here what the supervisor reads of /proc, what a pause of an ordinary user tries too, and lists of
# others whose attacks the tables have.
rest+=(TestOutsideLists TestM23PauseAndResume TestPolls TestEpollWatches TestOpenFolders)
# And of what a tool's program is let out to, which is the gateway's business alone.
rest+=(TestH15ToolLetOutCallsNoTools)
# And of who goes on with a saga, which is the state's business alone.
rest+=(TestH21SubstituteGoesOn)
# And of a window that outlasts a run, which is counted here as there.
rest+=(TestH24RunsThatFollowShareAWindow)
# And of steps that outlast a run, which the daemon alone counts.
rest+=(TestS6SandboxesStartIsNoHuman)
# And of a minute and a half in all what is names, environments, archives and whose place in /tmp is whose.
rest+=(TestM23VariablesStayHidden TestM23NamesThatAreWords TestKeptVerbsOfSeveral TestEnvironmentIsTheAgentsOnly TestM4BusyProgramsAreNoBreach
	TestKeepUnpackedByACarelessHost TestM5RootlessPlaceIsTaken TestM23HostileTarIntoARun TestServeEndsThoughNobodyReads TestH32FilesOfTwoFolders)
# And of a full scratch, which is a tmpfs there as here, and of words at the begin of a run.
rest+=(TestM2FullScratchIsTold TestM2Tmpfs TestShellWithoutATerminalIsTold)
if [[ -z ${AGENTRUN_VM_WHOLE:-}${AGENTRUN_VM_RUN:-} ]]; then same+=("${rest[@]}"); fi
# What has passed in a machine that then stood still.
if [[ -e /payload/passed ]]; then mapfile -t -O "${#same[@]}" same </payload/passed; fi
# Under emulation nothing is done in 90 ms (M-22): tests allow for AGENTRUN_TEST_SLOW, and so must the run that would be ended.
mkdir -p /etc/agentrun
echo 'live: {apply_time: 720ms}' >/etc/agentrun/config.yaml
while read -r package; do
	echo "@@testtable begin agentrun/$package"
	cd "/payload/src/$package" || exit 1
	"/payload/tests/${package//\//--}.test" -test.skip "^($(IFS="|"; echo "${same[*]}"))\$" -test.run "${AGENTRUN_VM_RUN:-}" -test.parallel 2 \
		-test.v=test2json -test.timeout 70m 2>&1
	code=$?
	printf '\n@@testtable end %d\n' "$code"
done </payload/packages
exit 0
